//! Logged completions as columns, from which both formats are written.

use anyhow::Result;

/// A column, one entry per completion.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// One whole number for all completions.
    Step(u64),
    Text(Vec<String>),
    Number(Vec<f32>),
    Flag(Vec<bool>),
    /// Whole numbers, one per token.
    Wholes(Vec<Vec<u32>>),
    /// Texts, one per token; `None` for a token without a text.
    Texts(Vec<Vec<Option<String>>>),
    /// Numbers, one per token.
    Numbers(Vec<Vec<f32>>),
}

/// The logged completions of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Number of completions.
    pub rows: usize,
    pub columns: Vec<(String, Column)>,
}

impl Table {
    /// Each completion as a line of JSON. Numbers that are not finite become null.
    pub fn lines(&self) -> Result<Vec<String>> {
        (0..self.rows).map(|row| self.line(row)).collect()
    }

    fn line(&self, row: usize) -> Result<String> {
        let mut line = String::from("{");
        for (name, column) in &self.columns {
            let value = match column {
                Column::Step(step) => step.to_string(),
                Column::Text(values) => serde_json::to_string(&values[row])?,
                Column::Number(values) => serde_json::to_string(&values[row])?,
                Column::Flag(values) => values[row].to_string(),
                Column::Wholes(values) => serde_json::to_string(&values[row])?,
                Column::Texts(values) => serde_json::to_string(&values[row])?,
                Column::Numbers(values) => serde_json::to_string(&values[row])?,
            };
            let comma = if line.len() == 1 { "" } else { "," };
            line.push_str(&format!("{comma}{}:{value}", serde_json::to_string(name)?));
        }
        line.push('}');
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_line_per_completion() {
        let columns = [
            ("step", Column::Step(3)),
            ("prompt", Column::Text(vec!["a\n".into(), "\"b\"".into()])),
            ("reward", Column::Number(vec![0.1, f32::NAN])),
            ("truncated", Column::Flag(vec![true, false])),
            (
                "tokens/text",
                Column::Texts(vec![vec![Some("x".into()), None], vec![]]),
            ),
            (
                "tokens/logp",
                Column::Numbers(vec![vec![-0.3, f32::INFINITY], vec![]]),
            ),
        ];
        let table = Table {
            rows: 2,
            columns: columns
                .map(|(name, column)| (name.to_owned(), column))
                .into(),
        };
        let expected = [
            r#"{"step":3,"prompt":"a\n","reward":0.1,"truncated":true,"tokens/text":["x",null],"tokens/logp":[-0.3,null]}"#,
            r#"{"step":3,"prompt":"\"b\"","reward":null,"truncated":false,"tokens/text":[],"tokens/logp":[]}"#,
        ];
        assert_eq!(table.lines().unwrap(), expected);
    }
}
