// Colours for code. (First form: none.)
export function highlight() {
  return null;
}
