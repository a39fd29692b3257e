"""Self-supervised visual representation learning, exact to the papers."""

from antipode import functional
from antipode.data.views import views
from antipode.methods import build, list_methods

__version__ = "0.1.0.dev0"
__all__ = ["build", "functional", "list_methods", "views"]
