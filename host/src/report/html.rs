//! Writes text and data into HTML pages.

use serde_json::Value;

/// Escapes text for HTML, including attribute values in quotes.
pub fn escape(text: &str) -> String {
    let escaped = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&#39;")
}

/// The HTML element that holds `data` for the page's script, with the id `id`.
pub fn data(id: &str, data: &Value) -> String {
    // Within a script element, no text may look like its end tag.
    let data = data.to_string().replace('<', "\\u003c");
    format!(
        "<script type=\"application/json\" id=\"{}\">{data}</script>\n",
        escape(id)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_is_markup() {
        assert_eq!(
            escape("<b a=\"x\">'&'</b>"),
            "&lt;b a=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/b&gt;"
        );
    }

    #[test]
    fn a_text_cannot_end_the_script_that_holds_it() {
        let text = "</script><script>alert(1)</script><!--";
        let element = data("data", &json!({ "tokens": [text] }));
        let (_, rest) = element.split_once("id=\"data\">").unwrap();
        let (held, _) = rest.split_once("</script>").unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(held).unwrap(),
            json!({ "tokens": [text] })
        );
        assert!(!held.contains('<'), "{held}");
    }
}
