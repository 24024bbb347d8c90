//! Until those of branch i8-k2 are here, which this file gives way to.

use crate::matrix::Format;

/// Brings at most 16 rows, as files have them in this format, into a panel.
pub fn pack(format: Format, inputs: usize, rows: &[&[u8]], panel: &mut [u8]) {
    let _ = (format, inputs, rows, panel);
    panic!("panels are packed by branch i8-k2")
}
