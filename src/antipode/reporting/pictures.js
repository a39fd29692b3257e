// What the backbone makes of its images.

function image(src, alt, side, extra = {}) {
  return el("img", { src, alt, class: side <= 48 ? "pixels" : null, loading: "eager", ...extra });
}

function neighbourSection() {
  focused("neighbours", "Nearest neighbours", "Left a query, then its eight nearest images by cosine of the backbone's features. A solid frame shares the query's label, a dashed one with a cross does not. Queries are the first of each class among images that the seed drew, not chosen.", (run) => {
    const found = run.pictures.neighbours;
    if (!found) return absent(run, "neighbours");
    const rows = found.rows.map((row) => {
      const judged = row.near.filter((one) => one.right !== null);
      const right = judged.filter((one) => one.right).length;
      const query = el("figure", { class: "query" }, image(row.src, `query ${row.label}`, found.side), el("figcaption", {}, row.label || "query", judged.length ? el("small", {}, ` ${right} of ${judged.length}`) : null));
      return el("div", { class: "near" }, query, el("div", { class: "row" }, row.near.map(neighbour(found.side))));
    });
    const all = found.right === null ? "These images have no labels, so no frame can say right or wrong." : `Over all ${say(found.queries)} queries, ${found.right.toFixed(1)} % of the eight nearest share the label; by chance it would be ${found.chance.toFixed(1)} %.`;
    return [el("div", { class: "nears" }, rows), el("p", { class: "small" }, `Queries from ${found.part} images, searched among ${say(found.bank)} train images. ${all}`)];
  });
}

function neighbour(side) {
  return (one) => {
    const kind = one.right === null ? "unknown" : one.right ? "right" : "wrong";
    const words = one.right === null ? "" : one.right ? "right: " : "wrong: ";
    const node = el("span", { class: `frame ${kind}` }, image(one.src, `${words}${one.label}`, side));
    node.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, el("div", { class: "head" }, `${words}${one.label || "image"}`), tipRow("transparent", "cosine", say(one.score))));
    node.addEventListener("pointerleave", hideTip);
    return node;
  };
}

function mapSection() {
  focused("map", "Map of the embeddings", "Each point is an image; close points look alike to the backbone. Where images have labels, islands of one colour mean that it tells a class apart without having seen them. Point at an image to see it; t-SNE keeps neighbours, not distances.", (run) => {
    const found = run.pictures.map;
    if (!found) return absent(run, "map");
    return [embeddingMap(found), el("p", { class: "small" }, `${say(found.names.length)} ${found.part} images, drawn by the run's seed.`)];
  });
}

function viewSection() {
  focused("views", "What the network is shown", "Left the image as it is, then the very views that this run saw of it in its first epochs. If you cannot tell what is left in common, nor can the network.", (run) => {
    const found = run.pictures.views;
    if (!found) return absent(run, "views");
    const rows = found.rows.map((row, place) => {
      const epochs = Array.from({ length: found.epochs }, (_, epoch) => el("div", { class: "epoch" }, place ? null : el("small", {}, `epoch ${epoch + 1}`), el("div", {}, row.views.slice(epoch * found.count, (epoch + 1) * found.count).map((src, at) => image(src, `view ${at + 1} in epoch ${epoch + 1}`, found.side)))));
      return el("div", { class: "seen" }, el("div", { class: "epoch original" }, place ? null : el("small", {}, "image"), el("div", {}, image(row.src, "the image itself", found.side))), el("div", { class: "epochs" }, epochs));
    });
    return el("div", { class: "sheet-of-views" }, rows);
  });
}

function geometrySection() {
  focused("similarities", "Similarities", "Cosines between two views of one image, which training pulls together, and between views of different images. The less they overlap, the better the features tell images apart.", (run) => {
    const found = run.pictures.similarity;
    if (!found) return absent(run, "similarity");
    const place = el("div");
    const draw = (which) => {
      const one = found.of[which];
      const chart = histogram({ title: "similarities", xlabel: "cosine", share: true, series: [{ name: "different images", colour: "var(--s1)", edges: one.edges, counts: one.negative }, { name: "one image", colour: "var(--s0)", edges: one.edges, counts: one.positive }] });
      const key = legend([["var(--s0)", `two views of one image, mean ${say(one.means[0])}`], ["var(--s1)", `different images, mean ${say(one.means[1])}`]]);
      place.replaceChildren(key, chart.node, el("p", { class: "small" }, `${say(found.images)} images. Two views of one image are more alike than two images in ${one.beats.toFixed(1)} % of comparisons (50 % is chance).`));
    };
    const kinds = Object.keys(found.of);
    draw(kinds[0]);
    return [kinds.length > 1 ? el("div", { class: "controls" }, choice(kinds.map((kind) => [kind, kind]), kinds[0], draw, "features")) : null, place];
  });
}

function spectrumSection() {
  const place = el("div");
  const drawn = D.runs.map((run, at) => [run.pictures.spectrum, at]).filter(([found]) => found);
  section("spectrum", "Spectrum", "Singular values of the features, centred and not scaled, largest first; the analysis of this name has them at length one and not centred, and so another effective rank. A line that stays high fills many dimensions; one that drops at once has collapsed into a few.", place);
  if (!drawn.length) {
    place.append(absent(D.runs[focus], "spectrum"));
    return;
  }
  const series = drawn.map(([found, at]) => ({ name: D.runs[at].name, colour: colour(at), dash: dash(at), x: found.x, y: found.y }));
  const rows = drawn.map(([found, at]) => [...(many ? [D.runs[at].name] : []), say(found.rank), String(found.ninety), String(found.width), `${say(found.images)} ${found.part}`]);
  place.append(lineChart({ series, log: true, direct: true, xlabel: "place", ylabel: "share of the largest", height: 280, title: "spectrum" }).node,
    table([...(many ? ["run"] : []), "effective rank", "dimensions for 90 % of the variance", "features", "images"], rows));
}
