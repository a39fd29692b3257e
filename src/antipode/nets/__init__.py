"""Networks: backbones, heads, batch norm."""
