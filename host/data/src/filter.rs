//! Selects rows by the values of their columns.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::columns::at;

/// Columns with their allowed values; a row is used if every column has one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Filter(BTreeMap<String, Allowed>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a value or a list of values \
                 (a name with dots goes in quotes: `{ \"a.b\" = 1 }`)"
)]
enum Allowed {
    Some(Vec<Scalar>),
    One(Scalar),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

impl Filter {
    /// True if a row has allowed values in all columns.
    pub(super) fn takes(&self, row: &Map<String, Value>) -> Result<bool> {
        for (column, allowed) in &self.0 {
            let value = at(row, column);
            ensure!(
                value.is_some(),
                "no column `{column}`, which `filter` asks for"
            );
            let takes = match allowed {
                Allowed::One(one) => one.is(value),
                Allowed::Some(some) => some.iter().any(|one| one.is(value)),
            };
            if !takes {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Scalar {
    fn is(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (Self::Bool(one), Some(Value::Bool(other))) => one == other,
            // As floats, whole numbers above 2^53 would be equal to their neighbours.
            (Self::Integer(one), Some(Value::Number(other)))
                if other.is_i64() || other.is_u64() =>
            {
                other.as_i64() == Some(*one)
            }
            (Self::Integer(one), Some(Value::Number(other))) => other.as_f64() == Some(*one as f64),
            (Self::Float(one), Some(Value::Number(other))) => other.as_f64() == Some(*one),
            (Self::Text(one), Some(Value::String(other))) => one == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn takes_rows_whose_columns_all_agree() {
        let filter: Filter =
            toml::from_str("level = ['Level 3', 'Level 4']\ntype = 'Algebra'\n'a.b' = [1, 2.5]\n")
                .unwrap();
        let takes = |level: &str, kind: &str, number: f64| {
            let row = json!({"level": level, "type": kind, "a": {"b": number}});
            filter.takes(row.as_object().unwrap()).unwrap()
        };
        assert!(takes("Level 4", "Algebra", 1.0) && takes("Level 3", "Algebra", 2.5));
        assert!(
            !takes("Level 5", "Algebra", 1.0)
                && !takes("Level 3", "Geometry", 1.0)
                && !takes("Level 3", "Algebra", 3.0)
        );
        let error = filter
            .takes(json!({"level": "Level 3"}).as_object().unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(error, "no column `a.b`, which `filter` asks for");
        assert!(Filter::default().takes(&Map::new()).unwrap());
        let filter: Filter = toml::from_str("id = 9007199254740992").unwrap();
        let takes = |id: Value| {
            filter
                .takes(json!({"id": id}).as_object().unwrap())
                .unwrap()
        };
        assert!(takes(json!(9_007_199_254_740_992_u64)) && takes(json!(9_007_199_254_740_992.0)));
        assert!(
            !takes(json!(9_007_199_254_740_993_u64)),
            "its neighbour, which as a float is the same"
        );
        let sentence = toml::from_str::<Filter>("m.style = 'rule'")
            .unwrap_err()
            .to_string();
        assert!(
            sentence.contains(
                "a value or a list of values (a name with dots goes in quotes: `{ \"a.b\" = 1 }`)"
            ),
            "{sentence}"
        );
    }
}
