//! The day that templates take for today.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use minijinja::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A day, written as `2026-07-31`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
}

impl Default for Date {
    /// Today in Greenwich.
    fn default() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self::after(i64::try_from(seconds / 86_400).unwrap_or(0))
    }
}

impl TryFrom<String> for Date {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parts: Vec<i64> = text.split('-').filter_map(|part| part.parse().ok()).collect();
        let date = match parts[..] {
            [year, month, day] if (1..=9999).contains(&year) && (1..=12).contains(&month) => {
                Some(Self { year, month, day })
            }
            _ => None,
        };
        // A day that a month has not is another day by its number.
        let date = date.filter(|date| Self::after(date.number()) == *date && String::from(*date) == text);
        date.with_context(|| format!("`{text}` is no day (write it as in `2026-07-31`)"))
    }
}

impl From<Date> for String {
    fn from(Date { year, month, day }: Date) -> Self {
        format!("{year:04}-{month:02}-{day:02}")
    }
}

impl Date {
    /// The day so many days after 1970-01-01. Years begin in March here, so that a leap day is the last of its year.
    fn after(days: i64) -> Self {
        let days = days + 719_468;
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        Self { year: year + era * 400 + i64::from(month <= 2), month, day }
    }

    /// Its number of days after 1970-01-01.
    fn number(self) -> i64 {
        let Self { year, month, day } = self;
        let year = if month <= 2 { year - 1 } else { year };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
    }

    /// The midnight that begins this day, as Python's `strftime` formats it in English.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let Self { year, month, day } = self;
        let weekday = (self.number() + 3).rem_euclid(7);
        let of_year = self.number() - Self { year, month: 1, day: 1 }.number() + 1;
        let (month_name, weekday_name) = (MONTHS[month as usize - 1], WEEKDAYS[weekday as usize]);
        let (mut text, mut chars) = (String::new(), format.chars());
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let directive = chars.next();
            let (plain, directive) = if directive == Some('-') { (true, chars.next()) } else { (false, directive) };
            let number =
                |number: i64, width: usize| if plain { number.to_string() } else { format!("{number:0width$}") };
            text += &match directive {
                Some('d') => number(day, 2),
                Some('e') => format!("{day:2}"),
                Some('m') => number(month, 2),
                Some('y') => number(year % 100, 2),
                Some('Y') => year.to_string(),
                Some('j') => number(of_year, 3),
                Some('b' | 'h') => month_name[..3].to_owned(),
                Some('B') => month_name.to_owned(),
                Some('a') => weekday_name[..3].to_owned(),
                Some('A') => weekday_name.to_owned(),
                Some('u') => (weekday + 1).to_string(),
                Some('w') => ((weekday + 1) % 7).to_string(),
                Some('F') => self.into(),
                Some('H' | 'M' | 'S') => number(0, 2),
                Some('I') => number(12, 2),
                Some('p') => "AM".to_owned(),
                Some('T' | 'X') => "00:00:00".to_owned(),
                Some('R') => "00:00".to_owned(),
                Some('z' | 'Z') => String::new(),
                Some('%') => "%".to_owned(),
                other => {
                    let directive = other.map_or_else(|| "%".to_owned(), |c| format!("%{c}"));
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("strftime_now knows no `{directive}`"),
                    ));
                }
            };
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Date {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn days_are_counted() {
        let numbers = [("1970-01-01", 0), ("2000-02-29", 11_016), ("2000-03-01", 11_017), ("2026-11-22", 20_779)];
        for (text, number) in numbers {
            assert_eq!(date(text).number(), number, "{text}");
            assert_eq!(Date::after(number), date(text));
        }
        for text in ["2026-02-29", "2026-13-01", "2026-1-1", "26-01-01", "today", "2026-01-00", "2026-01-01-01"] {
            let error = Date::try_from(text.to_owned()).unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is no day (write it as in `2026-07-31`)"));
        }
    }

    #[test]
    fn days_are_written_as_python_writes_them() {
        let day = date("2024-07-06");
        assert_eq!(day.format("%d %b %Y").unwrap(), "06 Jul 2024");
        assert_eq!(day.format("%A, %B %-d, %y %j%% %H:%M").unwrap(), "Saturday, July 6, 24 188% 00:00");
        assert!(day.format("%Q").unwrap_err().to_string().contains("strftime_now knows no `%Q`"));
        assert!(day.format("100%").is_err());
    }
}
