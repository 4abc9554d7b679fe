// How the search ranks what it finds: functions, which have docstrings, come after the pages that a reader looks for.
var Scorer = {
  objNameMatch: 1,
  objPartialMatch: 0,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// An excerpt shows what a page says, not its list of contents, its minutes or the choices of a form.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // on any other page
  const read = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll("#jb-print-docs-body, .bd-sidebar-secondary, .reading, form").forEach((part) => part.remove());
    return read(page.documentElement.outerHTML, anchor);
  };
});
