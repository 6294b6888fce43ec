//! Names of a scoring model's outputs.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::super::family::shown;

/// Most outputs of a model.
const MOST: usize = 4096;

/// Names of a model's outputs, in order: from `id2label`, else as many as `num_labels` says, else
/// the two of transformers.
pub(super) fn names(json: &Map<String, Value>) -> Result<Vec<String>> {
    let given = |key: &str| json.get(key).filter(|value| !value.is_null());
    match (given("id2label"), given("num_labels")) {
        (Some(Value::Object(named)), _) => {
            let names = (0..named.len())
                .map(|label| Some(named.get(&label.to_string())?.as_str()?.to_owned()))
                .collect::<Option<Vec<_>>>();
            names.filter(|names| !names.is_empty()).with_context(|| {
                let shown = shown(&Value::Object(named.clone()));
                format!(
                    "`id2label` is `{shown}`, expected a name for each number from 0 on \
                     (correct `config.json`)"
                )
            })
        }
        (Some(other), _) => bail!(
            "`id2label` is `{}`, expected an object (correct `config.json`)",
            shown(other)
        ),
        (None, Some(count)) => {
            let known = count.as_u64().and_then(|count| usize::try_from(count).ok());
            let known = known.filter(|count| (1..=MOST).contains(count));
            known.map(numbered).with_context(|| {
                format!(
                    "`num_labels` is `{}`, expected a number from 1 to {MOST} \
                     (correct `config.json`)",
                    shown(count)
                )
            })
        }
        (None, None) => Ok(numbered(2)),
    }
}

/// The names that transformers gives to outputs without names.
fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|label| format!("LABEL_{label}")).collect()
}

/// Index of the output that is the score: the only output, or the output named `label`.
pub(super) fn chosen(names: &[String], label: Option<&str>) -> Result<usize> {
    let Some(label) = label else {
        ensure!(
            names.len() == 1,
            "the model has {} outputs, `{}` (choose one with `label`)",
            names.len(),
            names.join("`, `")
        );
        return Ok(0);
    };
    let index = names.iter().position(|name| name == label);
    index.with_context(|| {
        format!(
            "`label` is `{label}`, but the model's outputs are `{}` (choose one of them)",
            names.join("`, `")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(json: Value) -> Result<Vec<String>> {
        names(json.as_object().unwrap())
    }

    #[test]
    fn reads_the_names_of_outputs() {
        assert_eq!(
            of(json!({"id2label": {"1": "b", "0": "a"}})).unwrap(),
            ["a", "b"]
        );
        assert_eq!(of(json!({"num_labels": 1})).unwrap(), ["LABEL_0"]);
        assert_eq!(of(json!({})).unwrap(), ["LABEL_0", "LABEL_1"]);
        let error = |json| of(json).unwrap_err().to_string();
        assert_eq!(
            error(json!({"id2label": {"1": "b"}})),
            "`id2label` is `{\"1\":\"b\"}`, expected a name for each number from 0 on (correct `config.json`)"
        );
        assert!(error(json!({"id2label": {}})).starts_with("`id2label` is `{}`"));
        assert!(error(json!({"num_labels": 1e9})).starts_with("`num_labels` is `1000000000.0`"));
    }

    #[test]
    fn chooses_the_output_that_is_the_score() {
        let names = ["bad", "good"].map(str::to_owned);
        assert_eq!(chosen(&names[..1], None).unwrap(), 0);
        assert_eq!(chosen(&names, Some("good")).unwrap(), 1);
        let error = |label| chosen(&names, label).unwrap_err().to_string();
        assert_eq!(
            error(None),
            "the model has 2 outputs, `bad`, `good` (choose one with `label`)"
        );
        assert_eq!(
            error(Some("Good")),
            "`label` is `Good`, but the model's outputs are `bad`, `good` (choose one of them)"
        );
    }
}
