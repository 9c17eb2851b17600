// Lines of commands break between words alone, since a browser would also break behind the dashes of an option.
// A button copies a block of commands or code.
document.addEventListener("DOMContentLoaded", () => {
  for (const pre of document.querySelectorAll("div.highlight-none pre")) {
    const words = pre.textContent.split(/(\s+)/).filter((word) => word);
    pre.replaceChildren(
      ...words.map((word) => {
        if (!word.trim()) return word;
        const span = document.createElement("span");
        span.className = "whole";
        span.textContent = word;
        return span;
      }),
    );
  }
  for (const block of document.querySelectorAll("div.highlight-none, div.highlight-python, div.highlight-yaml")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.querySelector("pre").textContent.trimEnd());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed"; // a browser that keeps pages from its clipboard, for example without https
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.querySelector("div.highlight").append(button);
  }
});
