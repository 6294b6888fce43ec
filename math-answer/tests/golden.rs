//! Answers that were judged by hand: where a text's answer is found, and what it equals.

use math_answer::{Places, Verdict, extract, grade, number};
use serde::Deserialize;

fn places(anchored: bool) -> Places {
    if anchored {
        Places::Anchored
    } else {
        Places::Any
    }
}

/// Answers to one gold answer. If `boxed` is true, each stands in a box of a sentence.
#[derive(Deserialize)]
struct Case {
    kind: String,
    gold: String,
    boxed: bool,
    anchored: bool,
    right: Vec<String>,
    wrong: Vec<String>,
}

#[test]
fn grades_answers_as_a_teacher_would() {
    for line in include_str!("../golden/cases.jsonl").lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        for (answers, expected) in [(&case.right, true), (&case.wrong, false)] {
            for answer in answers {
                let text = if case.boxed {
                    format!("The answer is $\\boxed{{{answer}}}$.")
                } else {
                    answer.clone()
                };
                let verdict = grade(&case.gold, &text, places(case.anchored));
                assert_eq!(
                    verdict.is_right(),
                    expected,
                    "{}: {} | {text}",
                    case.kind,
                    case.gold
                );
            }
        }
    }
}

/// What a row of texts tests: [`grade`], or the numbers of [`number::find`].
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reads {
    Answer,
    Number,
}

/// Whole texts, in which the answer must be found first.
#[derive(Deserialize)]
struct Texts {
    reads: Reads,
    kind: String,
    gold: String,
    #[serde(default = "yes")]
    anchored: bool,
    right: Vec<String>,
    wrong: Vec<String>,
}

fn yes() -> bool {
    true
}

impl Texts {
    fn is_right(&self, text: &str) -> bool {
        match self.reads {
            Reads::Answer => grade(&self.gold, text, places(self.anchored)).is_right(),
            Reads::Number => is_number(&self.gold, text),
        }
    }
}

/// True if the number of a text is the gold one.
fn is_number(gold: &str, text: &str) -> bool {
    let found = number::find(text, "####");
    found.is_some() && found == number::gold(gold, "####")
}

#[test]
fn finds_answers_where_a_reader_would_look() {
    for line in include_str!("../golden/found.jsonl").lines() {
        let texts: Texts = serde_json::from_str(line).unwrap();
        let Texts {
            kind,
            gold,
            anchored,
            ..
        } = &texts;
        for (group, expected) in [(&texts.right, true), (&texts.wrong, false)] {
            for text in group {
                let found = texts.is_right(text);
                assert_eq!(found, expected, "{kind}: {gold} | {text} | {anchored}");
            }
        }
    }
}

#[test]
fn reads_numbers_however_they_are_written() {
    let lines = include_str!("../golden/numbers.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let [same, text, gold] = line.split(" | ").collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(is_number(gold, text), same == "yes", "{line}");
    }
    assert_eq!(number::find("", "####"), None);
}

#[test]
fn finds_the_number_of_a_text() {
    for (text, gold) in [
        ("1 + 1 = 2\n#### 2 apples of 5", "so 2\n#### 2"),
        ("so \\boxed{x = 2} of 5", "2"),
        // What stands on a line of its own does not continue the number of the line above, and
        // `- 3` is a point of a list there.
        ("10\n-3", "-3"),
        ("so\n- 3", "3"),
        ("Step 5\n\\frac{1}{2}", "0.5"),
        ("2\n1/2", "0.5"),
    ] {
        assert!(is_number(gold, text), "{text}");
    }
    assert!(!is_number("2", "2, no: 3"));
}

#[test]
fn extracts_one_text_for_all_spellings() {
    let alike = [
        ["\\boxed{\\frac{3}{6}}", "the answer is 0.5"],
        ["\\boxed{2x+1}", "$1+2x$"],
        ["\\boxed{\\{2, 1\\}}", "$1,2$"],
        ["\\boxed{\\text{East}}", "$\\text{east}$"],
        ["#### 1,234", "1234"],
        ["\\boxed{B}", "\\boxed{\\textbf{(B)}\\ 12}"],
        ["\\boxed{y=2, x=1}", "\\boxed{(1,2)}"],
    ];
    for [one, other] in alike {
        assert_eq!(
            extract(one, Places::Any),
            extract(other, Places::Any),
            "{one}"
        );
        assert!(extract(one, Places::Any).is_some(), "{one}");
    }
    for [one, other] in [
        ["x", "y"],
        ["Evelyn", "Levyne"],
        ["x=1, y=2", "x=2, y=1"],
        ["R-r", "r-R"],
        ["\\zeta(2)", "2\\zeta"],
    ] {
        assert_ne!(
            extract(&format!("\\boxed{{{one}}}"), Places::Any),
            extract(&format!("\\boxed{{{other}}}"), Places::Any),
            "{one}"
        );
    }
    assert_eq!(
        ["", "I do not know", "\\boxed{} 5"].map(|text| extract(text, Places::Any)),
        [None, None, None]
    );
    assert_eq!(grade("", "\\boxed{}", Places::Any), Verdict::NoAnswer);
}
