// Loads MathJax where a page has equations. The first page has none, but Sphinx counts those of all its chapters as its
// own, and MathJax is by far the largest file of a page. Whoever waits for MathJax waits for the promise until it is here.
(function () {
  if (!document.querySelector(".math")) return;
  const script = document.createElement("script");
  script.src = new URL("mathjax.js", document.currentScript.src).href;
  const loaded = new Promise((done) => (script.onload = done)).then(() => window.MathJax.startup.promise);
  window.MathJax = { ...window.MathJax, startup: { promise: loaded } };
  document.head.append(script);
})();
