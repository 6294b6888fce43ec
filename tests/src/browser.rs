//! Evaluates pages in a headless browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Names of the Chromium executable.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];
/// Text before and after the value in the page that the browser writes.
const MARK: &str = "capo-found";

/// Value of the JavaScript `expression` in `page`, or of its promise, once the page has loaded.
/// Without a browser it is `None`, with a note; with `CAPO_REQUIRE_CHROMIUM=1` that is a failure.
///
/// # Panics
///
/// If the browser cannot show the page, or the expression throws.
pub fn evaluate(page: &Path, expression: &str) -> Option<Value> {
    let Some(browser) = browser() else {
        assert!(
            std::env::var_os("CAPO_REQUIRE_CHROMIUM").is_none_or(|value| value != "1"),
            "no Chromium was found (looked for {NAMES:?})"
        );
        eprintln!("SKIPPED: no Chromium was found (looked for {NAMES:?})");
        return None;
    };
    let text = std::fs::read_to_string(page).expect("a page");
    // The JSON escapes everything but plain ASCII, and the characters that a page would escape in
    // another way.
    let write = format!(
        "<script>Promise.resolve({expression}).then((found) => {{ const {{ body }} = document; body.textContent = \"\"; \
         const escape = (c) => \"\\\\u\" + c.charCodeAt(0).toString(16).padStart(4, \"0\"); \
         body.append(\"{MARK}\" + JSON.stringify(found).replace(/[^ -~]|[&<>]/g, escape) + \"{MARK}\"); }});</script></body>"
    );
    let (before, after) = text.rsplit_once("</body>").expect("a page has a body");
    let copy = page.with_extension("evaluated.html");
    std::fs::write(&copy, format!("{before}{write}{after}")).expect("a file is written");
    let profile = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", copy.display()))
        .output()
        .expect("the browser starts");
    let shown = String::from_utf8_lossy(&output.stdout);
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    let found = shown
        .split(MARK)
        .nth(1)
        .unwrap_or_else(|| panic!("the page wrote nothing: {}", said()));
    Some(serde_json::from_str(found).expect("JSON"))
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}
