//! An entry of the tables of checks.

use super::result::Not;
use super::subject::Subject;

/// A check of one property that the protocol requires.
pub struct Check {
    pub name: &'static str,
    /// The property that a passed check property.
    pub property: &'static str,
    pub run: fn(&mut Subject) -> Result<(), Not>,
}
