//! Pure statistics over `f64`: they know no sample, no engine, no unit and no clock. Every method cites its source, and
//! the tests hold it against values that numpy gives.

mod outliers;
mod quantile;
mod summary;

pub use outliers::outliers;
pub use quantile::{median, quantile};
pub use summary::Summary;
