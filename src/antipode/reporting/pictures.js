// The sections about images and their features: neighbours, map, views, similarities, spectrum.

// Return an image element. Small images are enlarged without smoothing.
function image(src, alt, side) {
  return el("img", { src, alt, class: side <= 48 ? "pixels" : null, loading: "eager" });
}

// Return what the images of a split are called in a sentence.
function splitImages(split) {
  return split === "train" ? "training images" : `${split} images`;
}

// ---- nearest neighbours

function neighbourSection() {
  const explanation = "Each row shows a query image on the left, followed by its eight nearest "
    + "neighbours by cosine similarity of the backbone features. A solid frame means that the "
    + "neighbour has the query's label. A dashed frame with a cross means that it does not. The "
    + "queries are not hand-picked: they are the first image of each class in a random sample that "
    + "is drawn with the run's seed.";
  runSection("neighbours", "Nearest neighbours", explanation, (run) => {
    const found = run.pictures.neighbours;
    if (!found) return missingPicture(run, "neighbours");
    const rows = found.rows.map((row) => neighbourRow(row, found.side));
    return [el("div", { class: "nears" }, rows), el("p", { class: "small" }, neighbourText(found))];
  });
}

function neighbourRow(row, side) {
  const labelled = row.near.filter(({ right }) => right !== null);
  const same = labelled.filter(({ right }) => right).length;
  const count = labelled.length ? el("small", {}, ` ${same} of ${labelled.length}`) : null;
  const query = el("figure", { class: "query" },
    image(row.src, `query ${row.label}`, side),
    el("figcaption", {}, row.label || "query", count));
  const neighbours = row.near.map((neighbour) => neighbourImage(neighbour, side));
  return el("div", { class: "near" }, query, el("div", { class: "row" }, neighbours));
}

function neighbourText({ right, queries, chance, part, bank }) {
  const score = right === null
    ? "These images have no labels, so the neighbours cannot be marked as right or wrong."
    : `Over all ${formatValue(queries)} queries, ${right.toFixed(1)} % of the eight nearest `
      + `neighbours have the query's label (chance level: ${chance.toFixed(1)} %).`;
  return `The queries are ${splitImages(part)}. The neighbours are retrieved from `
    + `${formatValue(bank)} training images. ${score}`;
}

function neighbourImage({ src, label, score, right }, side) {
  const kind = right === null ? "unknown" : right ? "right" : "wrong";
  const verdict = right === null ? "" : right ? "same label: " : "different label: ";
  const node = el("span", { class: `frame ${kind}` }, image(src, `${verdict}${label}`, side));
  node.addEventListener("pointermove", (event) => {
    const head = el("div", { class: "head" }, `${verdict}${label || "image"}`);
    const row = tipRow("transparent", "cosine similarity", formatValue(score));
    showTip(event.clientX, event.clientY, head, row);
  });
  node.addEventListener("pointerleave", hideTip);
  return node;
}

// ---- map

function mapSection() {
  const explanation = "Each point is an image. Images with similar backbone features are close "
    + "together. If the images have labels, colours and shapes show the classes: a separate "
    + "cluster means that the features separate this class, although training used no labels. "
    + "Drag to move, click an image for its neighbours, or draw a lasso around images to see them. "
    + "t-SNE preserves neighbourhoods, not distances.";
  runSection("map", "Embedding map", explanation, (run) => {
    const found = run.pictures.map;
    if (!found) return missingPicture(run, "map");
    const count = found.layouts.PCA.length / 2;
    const trained = count - found.tests;
    const tests = found.tests ? `${formatValue(found.tests)} test images` : "";
    const parts = [tests, trained ? `${formatValue(trained)} training images` : ""];
    const full = found.tests && trained ? " Test images have stronger colours." : "";
    const about = `${parts.filter(Boolean).join(" and ")}.${full}`;
    return [embeddingMap(found), el("p", { class: "small" }, about)];
  });
}

// ---- views

function viewSection() {
  const explanation = "Each row shows an image on the left, followed by the augmented views of it "
    + "that this run was trained on in its first epochs. If you cannot see what the views of an "
    + "image have in common, the network probably cannot learn it either.";
  runSection("views", "Augmented views", explanation, (run) => {
    const found = run.pictures.views;
    if (!found) return missingPicture(run, "views");
    const rows = found.rows.map((row, i) => viewRow(row, found, i === 0));
    return el("div", { class: "sheet-of-views" }, rows);
  });
}

// Return an image and its views, grouped by epoch. The first row has headings.
function viewRow(row, { epochs, count, side }, isFirst) {
  const heading = (text) => (isFirst ? el("small", {}, text) : null);
  const original = el("div", { class: "epoch original" },
    heading("original"), el("div", {}, image(row.src, "original image", side)));
  const groups = Array.from({ length: epochs }, (_, epoch) => {
    const views = row.views.slice(epoch * count, (epoch + 1) * count);
    const images = views.map((src, i) => {
      return image(src, `view ${i + 1} in epoch ${epoch + 1}`, side);
    });
    return el("div", { class: "epoch" }, heading(`epoch ${epoch + 1}`), el("div", {}, images));
  });
  return el("div", { class: "seen" }, original, el("div", { class: "epochs" }, groups));
}

// ---- similarities

function geometrySection() {
  const explanation = "Cosine similarities between two views of the same image, which training "
    + "pulls together, and between views of different images. The less the two histograms overlap, "
    + "the better the features distinguish images.";
  runSection("similarities", "Similarities", explanation, (run) => {
    const found = run.pictures.similarity;
    if (!found) return missingPicture(run, "similarity");
    const place = el("div");
    const draw = (features) => {
      place.replaceChildren(...similarityChart(found.of[features], found.images));
    };
    const kinds = Object.keys(found.of);
    const options = kinds.map((kind) => [kind, kind]);
    const controls = kinds.length > 1
      ? el("div", { class: "controls" }, choice(options, kinds[0], draw, "features"))
      : null;
    draw(kinds[0]);
    return [controls, place];
  });
}

function similarityChart({ edges, negative, positive, means, beats }, images) {
  const different = { name: "different images", colour: "var(--s1)", edges, counts: negative };
  const same = { name: "same image", colour: "var(--s0)", edges, counts: positive };
  const chart = histogram({
    title: "similarities",
    xlabel: "cosine similarity",
    share: true,
    series: [different, same],
  });
  const key = legend([
    [same.colour, `two views of the same image, mean ${formatValue(means[0])}`],
    [different.colour, `different images, mean ${formatValue(means[1])}`],
  ]);
  const text = `Computed on ${formatValue(images)} images. Two views of the same image are more `
    + `similar than views of two different images in ${beats.toFixed(1)} % of all comparisons `
    + "(chance level: 50 %).";
  return [key, chart.node, el("p", { class: "small" }, text)];
}

// ---- spectrum

function spectrumSection() {
  const place = el("div");
  const explanation = "Singular values of the backbone features, in descending order and relative "
    + "to the largest. A curve that stays high means that the features use many dimensions. A "
    + "curve that drops quickly means that they have collapsed to a few dimensions. Here the "
    + "features are centred but not normalised. The spectrum of antipode analyse and the effective "
    + "rank in the training curves are computed from vectors that are normalised to unit length "
    + "and not centred, so their effective rank differs.";
  section("spectrum", "Spectrum", explanation, place);
  const drawn = D.runs
    .map((run, index) => ({ run, index, found: run.pictures.spectrum }))
    .filter(({ found }) => found);
  if (!drawn.length) {
    place.append(missingPicture(D.runs[focus], "spectrum"));
    return;
  }
  const series = drawn.map(({ run, index, found }) => {
    return { name: run.name, colour: colour(index), dash: dash(index), x: found.x, y: found.y };
  });
  const rows = drawn.map(({ run, found }) => [
    ...(several ? [run.name] : []),
    formatValue(found.rank),
    String(found.ninety),
    String(found.width),
    `${formatValue(found.images)} ${splitImages(found.part)}`,
  ]);
  const chart = lineChart({
    series,
    log: true,
    direct: true,
    xlabel: "index",
    ylabel: "singular value / largest",
    height: 280,
    title: "spectrum",
  });
  const headings = [
    ...(several ? ["run"] : []),
    "effective rank (centred features)",
    "dimensions for 90 % of the variance",
    "feature dimensions",
    "computed on",
  ];
  place.append(chart.node, table(headings, rows, "stack"));
}
