// Shows the sentences of the ledger that a reader asks for. Their classes say what they are: paper-1 section-3-1 is-held.
// An address may ask, too: reference.html?on=affine-model.
const KINDS = {paper: "paper", section: "section", is: "verdict", on: "chapter"};
const SENTENCES = [...document.querySelectorAll(".verdict")];
const asked = new URLSearchParams(location.search);
const of = (sentence, kind) =>
  [...sentence.classList].filter((name) => name.startsWith(`${kind}-`)).map((name) => name.slice(kind.length + 1));
// A chapter is called as in the list of all pages.
const LINKS = [...document.querySelectorAll("nav a.internal")];
const TITLES = Object.fromEntries(LINKS.map((link) => [link.pathname.split("/").pop().replace(".html", ""), link.textContent.trim()]));
const words = (kind, value) =>
  kind === "paper" ? ["first paper", "second paper"][value - 1] : TITLES[value] ?? value.replace(/(?<=\d)-(?=\d)/g, ".").replaceAll("-", " ");

const chosen = {};
const shown = document.createElement("output");
for (const [kind, label] of Object.entries(KINDS)) {
  const values = [...new Set(SENTENCES.flatMap((sentence) => of(sentence, kind)))];
  chosen[kind] = document.createElement("select");
  chosen[kind].append(new Option("all", ""), ...values.map((value) => new Option(words(kind, value), value)));
  chosen[kind].value = values.includes(asked.get(kind)) ? asked.get(kind) : "";
  const box = document.createElement("label");
  box.append(label, chosen[kind]);
  document.getElementById("filters").append(box);
}
document.getElementById("filters").append(shown);

function show() {
  for (const sentence of SENTENCES)
    sentence.hidden = Object.entries(chosen).some(([kind, {value}]) => value && !of(sentence, kind).includes(value));
  shown.value = `${SENTENCES.filter((sentence) => !sentence.hidden).length} of ${SENTENCES.length} sentences`;
}
document.getElementById("filters").addEventListener("change", show);
show();
