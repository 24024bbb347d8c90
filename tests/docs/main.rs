//! Tests of the pages for people: every command runs or is parsed, every link leads to something, every quoted message exists,
//! every column is explained.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod columns;
mod commands;
mod glossary;
mod links;
mod messages;
mod page;
mod sessions;
