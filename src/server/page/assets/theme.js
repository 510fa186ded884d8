// Runs before the page is drawn, so that it does not flash in the other colours.
try {
  const {theme} = JSON.parse(localStorage.getItem("gem.settings") ?? "{}");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* then as the system wants it */ }
