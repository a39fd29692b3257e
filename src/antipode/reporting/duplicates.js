// The duplicates among the images: how many, and the first pairs.

const FIRST_PAIRS = "The first pairs of each kind; those of a train and a test image come first.";

function duplicateSection() {
  const explanation = "Exact duplicates have the same content. Near duplicates look alike: the "
    + "backbone finds them as similar as an image and a slightly changed copy of it, and small "
    + "copies of both agree.";
  runSection("duplicates", "Duplicates", explanation, (run) => {
    const found = run.pictures.duplicates;
    if (!found) return missingPicture(run, "duplicates");
    const pairs = found.pairs.map(duplicatePair);
    return [
      el("ul", { class: "plain" }, duplicateLines(found).map((text) => el("li", {}, text))),
      pairs.length ? el("div", { class: "pairs" }, pairs) : null,
      pairs.length ? el("p", { class: "small" }, FIRST_PAIRS) : null,
      found.notes.map((note) => el("p", { class: "small" }, `${note[0].toUpperCase()}${note.slice(1)}.`)),
      found.file
        ? el("p", { class: "small" },
          "All pairs are listed in ", el("code", {}, found.file), " in the run folder.")
        : null,
    ].flat();
  });
}

// Return the numbers of duplicates as sentences.
function duplicateLines({ counts, bound, agreement, conflicts }) {
  const number = (n, one, many) => `${n ? formatValue(n) : "No"} ${n === 1 ? one : many}`;
  const lines = [];
  const copies = counts["exact copies"];
  const differ = conflicts ? ` ${formatValue(conflicts)} of them have another label than the first.` : "";
  lines.push(`${number(copies, "image is an exact copy", "images are exact copies")} of another, `
    + `among all ${formatValue(counts.images)} images.${differ}`);
  const overlap = counts["test images in train"];
  if (overlap) {
    lines.push(`${number(overlap, "test image is", "test images are")} also in the train split, so `
      + "scores on these images are too high.");
  }
  if (bound !== null) {
    const across = counts["near pairs of train and test"];
    lines.push(`${number(counts["near pairs"], "pair", "pairs")} of near duplicates among `
      + `${formatValue(counts["images compared for near pairs"])} images`
      + `${across ? `, ${formatValue(across)} of them across train and test` : ""} (similarity of `
      + `at least ${formatValue(bound)}, agreement of at least ${formatValue(agreement)}).`);
  }
  return lines;
}

function duplicatePair({ kind, similarity, images }) {
  const figure = ({ src, name, split, label }) => el("figure", {},
    image(src, `${split} image ${label || name}`, 48),
    el("figcaption", {}, el("span", {}, split), label ? ` ${label}` : "",
      el("small", { title: name }, name)));
  const text = kind === "exact" ? "exact" : `near, ${similarity.toFixed(3)}`;
  return el("div", { class: "pair" }, el("p", {}, text), el("div", {}, images.map(figure)));
}
