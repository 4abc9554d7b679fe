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
