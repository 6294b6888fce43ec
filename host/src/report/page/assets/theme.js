// Light or dark as the machine has it; in the page's head, so that it never shows the other one first.
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
