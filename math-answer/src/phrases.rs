//! Phrases by which a text names its answer, changes it or takes it back.

use std::sync::LazyLock;

use regex::Regex;

/// Phrases before an answer, in lower case.
const ANCHORS: [&str; 5] = [
    "final answer is",
    "answer is",
    "answer:",
    "answer :",
    "answer**:",
];

/// Largest number of such phrases that are read, from the end of a text.
const MOST_ANCHORS: usize = 8;

/// A pattern that is compiled once.
macro_rules! pattern {
    ($($part:literal),+ $(,)?) => {{
        static PATTERN: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(concat!($($part),+)).expect("the pattern is a constant"));
        &*PATTERN
    }};
}

/// A place behind a phrase that names an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor<'t> {
    /// End of the phrase, bytes.
    pub behind: usize,
    /// The rest of its line.
    pub rest: &'t str,
    /// Position of that rest, bytes.
    pub start: usize,
    /// True if the phrase corrects an answer: `No, it's`.
    pub corrects: bool,
}

/// Longest text between an answer and the phrase that corrects it, bytes.
const MOST_TO_CORRECTION: usize = 200;

/// The places behind phrases before an answer, the last one first. `No, it's` before a value is one
/// too if it follows another one closely, or the beginning of the text where an answer ended there.
pub(crate) fn anchors(text: &str, follows_answer: bool) -> Vec<Anchor<'_>> {
    let named = named(text);
    let mut ends: Vec<(usize, bool)> = named.iter().map(|end| (*end, false)).collect();
    ends.extend(follows_answer.then_some((0, false)));
    let answers = ends.clone();
    let mut before = None;
    for end in corrections(text) {
        let follows = |answer: &usize| (*answer..=answer + MOST_TO_CORRECTION).contains(&end);
        if answers
            .iter()
            .map(|(answer, _)| answer)
            .chain(&before)
            .any(follows)
        {
            before = Some(end);
            ends.push((end, true));
        }
    }
    ends.retain(|(end, corrects)| *corrects || named.contains(end));
    ordered(text, ends)
}

/// The rest of the line behind the last words by which a text names its answer.
pub(crate) fn stated(text: &str) -> Option<&str> {
    ordered(
        text,
        named(text).into_iter().map(|end| (end, false)).collect(),
    )
    .first()
    .map(|anchor| anchor.rest)
}

/// Positions behind phrases that name an answer; in `if the answer is` and `the wrong answer is`
/// none is named.
fn named(text: &str) -> Vec<usize> {
    let lower = text.to_ascii_lowercase();
    let mut ends = Vec::new();
    for anchor in ANCHORS {
        let found = lower
            .rmatch_indices(anchor)
            .take(4 * MOST_ANCHORS)
            .map(|(at, _)| (at, at + anchor.len()));
        // `answer isn't`
        let is_whole = |&(_, end): &(usize, usize)| {
            anchor.ends_with(':')
                || !text[end..]
                    .starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '\'' | '’'))
        };
        let names = |(at, _): &(usize, usize)| !is_supposed(&text[..*at]) && !denies(&text[..*at]);
        ends.extend(
            found
                .filter(is_whole)
                .filter(names)
                .map(|(_, end)| end)
                .take(MOST_ANCHORS),
        );
    }
    ends
}

/// The last of these places, in descending order.
fn ordered(text: &str, mut ends: Vec<(usize, bool)>) -> Vec<Anchor<'_>> {
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.dedup_by_key(|(end, _)| *end);
    let anchor = |(behind, corrects): (usize, bool)| {
        let rest = text[behind..].trim_start_matches([':', ' ', '\n', '*']);
        let start = text.len() - rest.len();
        Anchor {
            behind,
            rest: rest
                .lines()
                .next()
                .unwrap_or_default()
                .trim_end_matches([' ', '*']),
            start,
            corrects,
        }
    };
    ends.into_iter().take(MOST_ANCHORS).map(anchor).collect()
}

/// True if a clause that ends with `before` only supposes what follows, or calls it wrong.
pub(crate) fn is_supposed(before: &str) -> bool {
    let clause = last_clause(before);
    pattern!(r"(?i)\b(?:if|suppos\w+|assum\w+|whether|unless|imagine|pretend|thought|guessed|claim\w*|wrong|incorrect|mistaken|naive|tempting|(?:some|they|he|she|you|people|students|many|might|may|would|could) (?:\w+ )?(?:say|says|think|thinks|guess|guesses|believes?))\b")
        .is_match(clause)
        && !clause.to_lowercase().contains("only if")
}

/// True if the words before a phrase deny it: `it is not true that the answer is`.
fn denies(before: &str) -> bool {
    pattern!(r"(?i)(?:\b(?:not|false)\b|n['’]t\b)").is_match(last_clause(before))
}

/// The words behind the last sign that ends a clause.
fn last_clause(before: &str) -> &str {
    let before = &before[floor(before, before.len().saturating_sub(120))..];
    before
        .rsplit(['.', ',', '!', '?', ';', ':', '\n', '(', '—'])
        .next()
        .unwrap_or_default()
}

/// The last boundary of a character at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0)
}

/// Phrases that take back what was said, at the beginning of a clause.
const TAKES_BACK: &str = concat!(
    r"(?:[.!?;:,…—–\n(*-]|\$|\\\)|\\\]|\}|\bbut\b|\boh\b|\band\b)[\s*_“]*",
    r"(?:(?:but|oh|ah|hm+|and|then)[\s,.…]+)*",
    r"(?:",
    r"wait(?:\s*[,.:;!…—–-]|\s+(?:a|no|that|i|let|is|it|the|but|actually|what)\b)|",
    r"no(?:pe)?(?:\s*[,.:;!…—–]|\s+(?:wait|sorry|actually|that|it|this|i)\b)|",
    r"oops|whoops|(?:hold|hang) on|ignore that|not quite|i stand corrected|scratch that|strike that|never ?mind|my (?:mistake|bad|error|apologies)|",
    r"correction\s*:|(?:on|upon) (?:second thoughts?|(?:further |closer )?(?:reflection|inspection))|",
    r"(?:sorry|apologies|i apologi[sz]e)\s*[,.:;!…—–-]|",
    r"i (?:made an? \w*\s?(?:mistake|error)|was wrong|take (?:that|it) back|mis(?:read|calculated|counted|took)|forgot)|",
    r"there (?:is|was) an? (?:mistake|error)|actually,?\s+no\b",
    r")",
);

/// Further phrases that correct an answer if a value follows them.
const CORRECTS: &str = r"(?:[.!?;:,…—–\n(-]|\$|\\\)|\\\]|\}|\bor\b)[\s*_]*(?:actually|or rather|rather|i meant|i mean|sorry|make (?:that|it))\b";

/// Words that say of an answer right before them that it is wrong.
const DENIES: &str = concat!(
    r"\b(?:that|this|it|which|the above|the answer)(?:(?:['’]s| is| was| must be| seems| looks| would be) (?:\w+ly |also |still )?",
    r"(?:wrong|incorrect|mistaken|false|impossible|not (?:right|correct|true|possible|it|the)|too (?:big|large|small|high|low))|",
    r"(?: is| was| does| ca| could| wo|can)?n(?:['’]t|ot) (?:be )?(?:right|correct|true|work|fit|possible|make sense))\b|",
    r"\b(?:they|he|she|we|i)(?:['’](?:re|m|s)| are| am| is| was| were) (?:wrong|mistaken|incorrect)\b",
);

/// Ends of the phrases by which a text gives another answer than before, as `Wait, no, it's`.
fn corrections(text: &str) -> Vec<usize> {
    static CORRECTION: LazyLock<Regex> = LazyLock::new(|| {
        let fill = r"(?:[\s,.:;!…—–-]+(?:no|wait|sorry|actually|oops|my mistake|that['’]s (?:wrong|not right|incorrect)|that is (?:wrong|not right|incorrect)|so|rather|instead|i (?:made|was) \w+ ?\w*|correction))*";
        let leads = concat!(
            r"(?:(?:it|that|this|the (?:\w+ )?(?:answer|result|value|number|total|solution|option|choice|one))",
            r"(?:['’]s| is| was| should be| should have been| must be| equals)(?: really| actually| in fact| instead)?|make (?:that|it)|i (?:mean|meant)|should be|should have been)",
        );
        Regex::new(&format!(r"(?i)(?:{TAKES_BACK}|{CORRECTS}){fill}[\s,.:;!…—–-]*(?:{leads}\b)?|[,.;](?:\s*\$)?\s*(?:but|yet|instead|otherwise)[\s,]+{leads}\b|\blet me [^.!?:\n]{{0,40}}[.:,…\s]+(?:so )?{leads}\b"))
            .expect("the pattern is a constant")
    });
    // No correction stands before another answer's words: `Wait, no. Then` names none.
    let named = |end: &usize| {
        let rest = text[*end..].trim_start_matches([' ', ':', '*']);
        rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '$' | '\\' | '-' | '−'))
            || pattern!(r"^(?:option |choice )?\(?[A-HJ]\)?(?:[.,;:!\s)]|$)").is_match(rest)
    };
    CORRECTION
        .find_iter(text)
        .map(|found| found.end())
        .filter(named)
        .collect()
}

/// Position behind the phrase by which the text right behind an answer takes it back; `None` if the
/// answer stands.
pub(crate) fn taken_back(behind: &str) -> Option<usize> {
    static PHRASE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(&format!("(?i){TAKES_BACK}")).expect("the pattern is a constant")
    });
    static DENIAL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!("(?i){DENIES}")).expect("the pattern is a constant"));
    // `The answer is 5?`
    let asked = behind
        .trim_start_matches([' ', '$', '*', ')', '.', '"', '”'])
        .starts_with('?')
        .then_some(1);
    let is_wrong = pattern!(
        r"(?i)^[\s$)*]*(?:is|was|would be|seems|looks)(?: \w+ly| also| still)? (?:wrong|incorrect|mistaken|false|impossible|not (?:right|correct|true|possible|it|the))\b|^[\s$)*]*(?:is|was)n['’]t (?:right|correct|it|the)\b",
    );
    let is_wrong = is_wrong.find(behind).map(|found| found.end());
    let denied = DENIAL
        .find(behind)
        .filter(|found| !names_value(&behind[..found.start()]))
        .map(|found| found.end());
    let phrase = PHRASE
        .find_iter(behind)
        .find(|found| stands(behind, found.start(), found.end()))
        .map(|found| found.end());
    asked
        .into_iter()
        .chain(is_wrong)
        .chain(denied)
        .chain(phrase)
        .min()
}

/// True if a phrase takes the answer back: it answers no question (`Is there another? No, ...`),
/// and nothing confirms the answer right after it.
fn stands(text: &str, start: usize, end: usize) -> bool {
    let asks = text[start..].starts_with('?');
    let after = &text[end..floor(text, text.len().min(end + MOST_TO_CORRECTION))];
    let confirmed = pattern!(
        r"(?i)\b(?:yes|indeed|(?:is|was|looks|seems|['’]s) (?:indeed |actually |still )?(?:correct|right|fine|ok)|checks out|holds|confirmed|stands)\b",
    )
    .find(after)
    .is_some_and(|found| !names_value(&after[..found.start()]));
    !asks && !confirmed
}

/// True if a text has a digit or a formula's delimiter.
fn names_value(text: &str) -> bool {
    let behind_formula = text.trim_start_matches(['$', ' ', '}', ')', '*']);
    let behind_formula = behind_formula
        .strip_prefix("\\)")
        .or(behind_formula.strip_prefix("\\]"))
        .unwrap_or(behind_formula);
    behind_formula.contains(|c: char| c.is_ascii_digit() || matches!(c, '$' | '\\'))
}

/// Words that may stand between `not` or `than` and its value.
const BETWEEN: &str = r"(?:\s+(?:be|equal to|equals?|exactly|just|simply|a|an|the|answer|value|of|\w+ly))*[\s:$({*]*(?:\\[(\[])?\s*(?:[a-zA-Z]\s*=\s*)?$";

/// True if the words right before a value deny it: `isn't 5`, `cannot be 5`.
pub(crate) fn is_negated(before: &str) -> bool {
    static NEGATES: LazyLock<Regex> = LazyLock::new(|| {
        let words = r"(?:\b(?:not|never|hardly|cannot|nor|neither|instead of|rather than|other than|except|unlike)\b|n['’]t\b)";
        Regex::new(&format!("(?i){words}{BETWEEN}")).expect("the pattern is a constant")
    });
    NEGATES.is_match(tail(before))
}

/// True if the words right before a value compare or calculate with it: `less than 5`, `half of 5`.
pub(crate) fn is_compared(before: &str) -> bool {
    static COMPARES: LazyLock<Regex> = LazyLock::new(|| {
        let words = r"(?:^|[^\\\p{L}])(?:than|half|half of|twice|thrice|double|triple|minus|times|divided by|multiplied by|root of|square of|cube of|reciprocal of|close to|different from|distinct from|far from|anything but|unlikely to be|between|multiple of|multiples of|divisible by|modulo|mod)\b";
        Regex::new(&format!("(?i){words}{BETWEEN}")).expect("the pattern is a constant")
    });
    COMPARES.is_match(tail(before))
}

/// The last bytes of a text, in which a phrase right before a value stands.
fn tail(before: &str) -> &str {
    &before[floor(before, before.len().saturating_sub(80))..]
}

/// The number word right behind a value, which multiplies it, and the length up to its end.
pub(crate) fn scale(behind: &str) -> Option<(&str, usize)> {
    let found = pattern!(r"(?i)^[\s~-]*(hundred|thousand|million|billion|trillion|dozen)s?\b")
        .captures(behind)?;
    Some((found.get(1)?.as_str(), found.get_match().end()))
}

/// True if the words right behind a value make another value of it: `more than 6`,
/// `times as many as 6`, `squared`, `or more`.
pub(crate) fn is_changed(behind: &str) -> bool {
    let sentence = behind.split(['\n', ';']).next().unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default();
    let calculates = pattern!(
        r"(?i)^[\s\\]*((?:[a-z]+\s+){0,2}?)(?:(?:(?:more|less|fewer)(?:\s+\w+){0,2}|[a-z]+er)\s+than|times(?:\s+(?:as|the|that|what|more))?|plus|minus|",
        r"divided by|multiplied by|raised to|short of|away from|modulo|mod)\s+(?:[a-z]+\s+){0,4}?[$\\\d]",
    );
    let joins = "which that because since as so but if when where while with by for is it and or";
    let calculated = calculates
        .captures(sentence)
        .is_some_and(|found| !says(&found[1], joins));
    let alone = pattern!(
        r"(?i)^[\s\\]*(?:(?:out of|of|to|through|over|above|below)\s+[$\\\d]|(?:only|just)\s+(?:if|when)\b|or\s+(?:more|less|fewer|greater|higher|lower)\b|and\s+a\s+(?:half|third|quarter)\b|to\s+the\s+power\b|(?:squared|cubed|factorial)\s*(?:[.,!]|$))",
    );
    let cases = pattern!(
        r"(?i)^[\s,]*(?:if|when|for)\b.*(?:\b(?:otherwise|else)\b|\b(?:and|but|or)\b.*[\d$].*\b(?:if|when|for)\b)"
    );
    calculated || alone.is_match(sentence) || cases.is_match(sentence)
}

/// Where a text says that there is no solution, behind every other sentence with a value: the
/// phrase, such as `no real solutions`.
pub(crate) fn none(text: &str) -> Option<(usize, &str)> {
    let found = pattern!(
        r"(?i)\b(?:there (?:is|are|exists?|can be)|ha(?:s|ve|d)|we (?:get|find|conclude))(?: therefore| thus)? (no (?:[a-z]+ ){0,2}(?:solutions?|roots?))\b|\b(no (?:[a-z]+ ){0,2}solutions?) (?:exists?|is possible|are possible)\b",
    )
    .captures_iter(text)
    .last()?;
    let phrase = found.get(1).or(found.get(2))?;
    let behind = &text[phrase.end()..];
    let limited =
        pattern!(r"(?i)^\s*(?:if|when|for|unless|other|except|besides|in|with|where|such)\b")
            .is_match(behind);
    (!limited && !is_supposed(&text[..phrase.start()]) && taken_back(behind).is_none())
        .then_some((phrase.end(), phrase.as_str()))
}

/// A text without its last sentences of courtesy: `Let me know if you have 2 more questions!`
pub(crate) fn without_courtesy(text: &str) -> &str {
    let courtesy = pattern!(
        r"(?i)(?:^|[.!?\n])[\s*]*(?:please\s+)?(?:let me know|feel free|(?:i )?hope (?:this|that|it)|if you (?:have|need|want|would like)|would you like|do you (?:have|need|want))\b",
    );
    match courtesy.find(text) {
        Some(found) if found.start() > 0 => &text[..=floor(text, found.start())],
        _ => text,
    }
}

/// An option that a text calls right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Beginning of the phrase that chooses it, bytes.
    pub start: usize,
    pub letter: char,
    /// End of its letter, bytes.
    pub end: usize,
}

/// The option of the last sentence that calls one right: `The correct option is B`,
/// `Option B is correct`. `None` if that sentence names two.
pub(crate) fn chosen(text: &str) -> Option<Chosen> {
    static FORMS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
        let letter = r"[*(]*([A-HJ])[*)]*";
        let surely = "(?: clearly| definitely| actually| indeed| therefore| thus| obviously)?";
        let end = r"(?:\s*$|\s*[.,;!:\n]|\s+(?:because|since|as|with|which)\b)";
        let forms = [
            format!(
                r"(?i:\b(?:option|choice|answer|letter|one)\**(?: is| must be| would be| should be|:)\**{surely}(?: the)?(?: option| choice| letter)?:?)\s*{letter}{end}"
            ),
            format!(
                r"(?i:\b(?:option|choice|answer|letter)) {letter} (?i:(?:is|must be){surely}(?: the)? (?:correct|right|best|true|answer|one))\b"
            ),
            format!(
                r"(?-u:\b|\()\**{letter} (?i:is{surely}(?: the)? (?:correct|right|best|answer))\b"
            ),
            format!(
                r"(?i:\b(?:must be|should be|so|thus|hence|therefore),? (?:option|choice|letter)) {letter}{end}"
            ),
            format!(
                r"(?i:\b(?:choose|select|pick|go with)(?: option| choice| answer| letter)?) {letter}{end}"
            ),
        ];
        forms
            .iter()
            .map(|form| Regex::new(form).expect("the pattern is a constant"))
            .collect()
    });
    let found = FORMS
        .iter()
        .flat_map(|form| form.captures_iter(text))
        .filter_map(|found| {
            let letter = found.get(1)?;
            // `Option B is correct?`
            let stands = !text[found.get_match().end()..].starts_with('?');
            stands.then_some(Chosen {
                start: found.get(0)?.start(),
                letter: letter.as_str().chars().next()?,
                end: letter.end(),
            })
        });
    let last = found.max_by_key(|chosen| chosen.end)?;
    let (before, behind) = (&text[..last.start], &text[last.end..]);
    let is_other =
        pattern!(r"^[*)\s]*(?:,|/|&|and\b|or\b)[\s,]*(?:and |or )?(?:so is |also )?(?i:option |choice )?\(?[A-HJ]\b")
            .is_match(behind)
            || pattern!(
                r"(?:[A-HJ]\)?\s*(?:,|and|or|nor|/)|(?i:neither|both|and|or|nor))\s*(?i:option|choice)?\s*\(?$"
            )
            .is_match(before);
    let limited =
        pattern!(r"(?i)^[*)\s]*(?:is \w+(?: \w+)?)?\s*(?:if|only|when|unless)\b").is_match(behind);
    let is_other = is_other
        || pattern!(
            r"^[^.\n]*(?-u:\b)(?:and|or|but)(?-u:\b)[^.\n]*(?i:option|choice)\s+\(?[A-HJ](?-u:\b)"
        )
        .is_match(behind);
    (!is_other && !limited && !is_supposed(before) && taken_back(behind).is_none()).then_some(last)
}

/// The text without Markdown's signs for bold: `**42**` is 42, and `2**3` stays.
pub(crate) fn without_bold(text: &str) -> String {
    pattern!(r"(^|[\s=:({])\*\*([^*\s](?:(?:\*?[^*\n])*[^*\s])?)\*\*\B")
        .replace_all(text, "$1$2")
        .into_owned()
}

/// True if a text begins with the reason of what was said, and has no other sentence.
pub(crate) fn explains(behind: &str) -> bool {
    pattern!(r"^,?\s*(?:as|since|because)\b[^\n]*$").is_match(behind.trim_end())
        && !behind.contains(". ")
}

/// True if a word of `list` is in a text.
pub(crate) fn says(text: &str, list: &str) -> bool {
    words(text).any(|word| list.split(' ').any(|known| known == word))
}

/// Words of two letters and more, in lower case and without commands.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    let plain = pattern!(r"\\[a-zA-Z]+|\p{L}{2,}")
        .find_iter(text)
        .filter(|word| !word.as_str().starts_with('\\'));
    plain.map(|word| word.as_str().to_lowercase())
}
