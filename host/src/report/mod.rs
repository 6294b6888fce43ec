//! Reads the files of runs, and writes pages for a person.

pub mod found;
pub mod html;
pub mod page;
