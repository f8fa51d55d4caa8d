for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "copied";
    } catch {  // not allowed in a page opened from a file: select the text instead
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });
}
