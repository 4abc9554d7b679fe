// Shows the recorded case that answers a reader's choices, or the nearest: the form's data name it for every combination.
(function () {
  const box = document.currentScript.parentElement;
  const form = box.querySelector("form");
  const cases = [...box.querySelectorAll(".case")];
  const choices = [...form.querySelectorAll("select")];
  const answers = JSON.parse(form.dataset.answers);

  function show() {
    const place = choices.reduce((before, {options, selectedIndex}) => before * options.length + selectedIndex, 0);
    const [shown, differing] = answers[place];
    cases.forEach((one, k) => (one.hidden = k !== shown));
    cases[shown].classList.toggle("other", differing.length > 0);
    const back = [...cases[shown].querySelectorAll("li")].map((line) => line.textContent).join("; ");
    form.querySelector("output").value = differing.length
      ? `Not recorded. The nearest case that is, below, differs in its ${differing.join(" and ")}, and says nothing of yours.`
      : `Recorded. What comes back: ${back}.`;
  }
  form.hidden = false;
  form.addEventListener("change", show);
  show();
})();
