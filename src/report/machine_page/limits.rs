//! The limits of a machine as two small tables: memory by threads and streams, arithmetic by units and
//! threads. Each GPU has a line. A thread reads several ranges of memory at once; each range is a stream.

use std::collections::BTreeSet;

use machine_limits::{GpuLimits, Limits, Operations, Reads};

use crate::report::document::{Column, Line, List, Section, Table};
use crate::report::headings::{self, Heading};
use crate::text::{line, plural, three_digits};

pub fn parts(limits: &Limits) -> Vec<Section> {
    let mut parts: Vec<Section> = [memory(&limits.reads), arithmetic(&limits.units)]
        .into_iter()
        .flatten()
        .map(Section::Table)
        .collect();
    let gpus = limits.gpus.iter().map(gpu);
    let absent = limits.absent.iter().map(|reason| format!("not probed: {}", line(reason)));
    let list = List::plain(gpus.chain(absent));
    parts.extend((!list.items.is_empty()).then_some(Section::List(list)));
    parts
}

/// `GPU 0, NVIDIA H100: copies 2,900 GB/s; 10⁹ operations/s: cublas_bf16 610,000`.
fn gpu(gpu: &GpuLimits) -> String {
    let copies = best(gpu.copies.iter().map(|it| (it.bytes, it.ns)));
    let copies = if copies.is_empty() { "copies n/a".into() } else { format!("copies {copies} GB/s") };
    let rate = |it: &Operations| format!("{} {}", line(&it.unit), best([(it.operations, it.ns)]));
    let rates = gpu.matrix.iter().map(rate).collect::<Vec<_>>().join(", ");
    let matrix = if rates.is_empty() { rates } else { format!("; 10⁹ operations/s: {rates}") };
    format!("GPU {}, {}: {copies}{matrix}", gpu.index, line(&gpu.name))
}

fn memory(reads: &[Reads]) -> Option<Table> {
    let streams: BTreeSet<u32> = reads.iter().map(|read| read.streams).collect();
    let threads: BTreeSet<u32> = reads.iter().map(|read| read.threads).collect();
    let rows = threads.iter().map(|&threads| {
        let cells = streams.iter().map(|&streams| {
            let matching = reads.iter().filter(|read| (read.threads, read.streams) == (threads, streams));
            best(matching.map(|read| (read.bytes, read.ns)))
        });
        std::iter::once(plural(threads, "thread")).chain(cells).collect()
    });
    let titles = streams.iter().map(|&it| plural(it, "stream"));
    table(headings::MEMORY_LIMIT, (headings::STREAMS, titles), rows)
}

fn arithmetic(units: &[Operations]) -> Option<Table> {
    let threads: BTreeSet<u32> = units.iter().map(|it| it.threads).collect();
    let mut names: Vec<(&str, bool)> = Vec::new();
    for it in units {
        let name = (it.unit.as_str(), it.loads);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let rows = names.iter().map(|&(unit, loads)| {
        let cells = threads.iter().map(|&threads| {
            let matching =
                units.iter().filter(|it| (it.unit.as_str(), it.loads, it.threads) == (unit, loads, threads));
            best(matching.map(|it| (it.operations, it.ns)))
        });
        // The operands come from the nearest cache, not from registers.
        let name = if loads { format!("{unit}, from cache") } else { unit.to_string() };
        std::iter::once(name).chain(cells).collect()
    });
    let titles = threads.iter().map(|&it| plural(it, "thread"));
    table(headings::ARITHMETIC_LIMIT, (headings::THREADS, titles), rows)
}

/// The highest rate, in 10⁹ a second; empty without a measurement.
fn best(counted: impl IntoIterator<Item = (u64, u64)>) -> String {
    let rates = counted.into_iter().filter(|(count, ns)| *count > 0 && *ns > 0);
    let rates = rates.map(|(count, ns)| count as f64 / ns as f64);
    rates.reduce(f64::max).map_or_else(String::new, three_digits)
}

/// A table with a name column and a column for each title: a number of the heading.
fn table(
    name: Heading,
    (heading, titles): (Heading, impl Iterator<Item = String>),
    rows: impl Iterator<Item = Vec<String>>,
) -> Option<Table> {
    let columns = titles.map(|title| Column::value(heading, "").titled(title));
    let columns = std::iter::once(Column::named(name)).chain(columns);
    let (columns, lines): (_, Vec<Line>) = (columns.collect(), rows.map(Line::of).collect());
    (!lines.is_empty()).then(|| Table { columns, lines, gap: 2, ..Table::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::machine_page::Page;
    use crate::report::shown;
    use crate::report::tests::assert_fits;

    /// The lines that these limits add to the page.
    fn lines(limits: &Limits, width: usize) -> Vec<String> {
        let page = |limits| shown(&Page { limits, ..Page::default() }, "table", Some(width));
        let (with_limits, without_limits) = (page(Some(limits.clone())), page(None));
        with_limits.lines().skip(without_limits.lines().count()).map(String::from).collect()
    }

    #[test]
    fn each_gpu_and_each_limit_that_was_not_probed_has_a_line() {
        let matrix =
            Operations { unit: "cublas_bf16".into(), operations: 610_000, ns: 1, ..Operations::default() };
        let copies = Some(machine_limits::Copies { bytes: 2900, ns: 1 });
        let gpu = GpuLimits {
            name: "Pretence\u{1b}[2J".into(),
            copies,
            matrix: vec![matrix],
            ..GpuLimits::default()
        };
        let limits =
            Limits { gpus: vec![gpu], absent: vec!["cuBLAS: no such library".into()], ..Limits::default() };
        let text = lines(&limits, 80).join("\n");
        assert!(
            text.contains("GPU 0, Pretence: copies 2,900 GB/s; 10⁹ operations/s: cublas_bf16 610,000"),
            "{text}"
        );
        assert!(text.contains("not probed: cuBLAS: no such library"), "{text}");
    }

    fn probed(threads: &[u32]) -> Limits {
        let reads = threads.iter().flat_map(|&threads| {
            [1, 4].map(|streams| Reads {
                threads,
                streams,
                bytes: 1000 * u64::from(threads * streams),
                ns: 100,
            })
        });
        let units = threads.iter().flat_map(|&threads| {
            [("f32_fma", false), ("f32_fma", true), ("amx_int8", false)].map(|(unit, loads)| Operations {
                unit: unit.into(),
                loads,
                threads,
                operations: 123_456 * u64::from(threads),
                ns: 1000,
            })
        });
        Limits { reads: reads.collect(), units: units.collect(), ..Limits::default() }
    }

    #[test]
    fn memory_is_listed_by_threads_and_streams_and_arithmetic_by_units_and_threads() {
        let expected = [
            "",
            "memory, GB/s  1 stream  4 streams",
            "─────────────────────────────────",
            "1 thread          10.0       40.0",
            "2 threads         20.0       80.0",
            "",
            "arithmetic, 10⁹ operations/s  1 thread  2 threads",
            "─────────────────────────────────────────────────",
            "f32_fma                            123        247",
            "f32_fma, from cache                123        247",
            "amx_int8                           123        247",
        ];
        assert_eq!(lines(&probed(&[1, 2]), 80), expected);
    }

    #[test]
    fn cells_without_a_probe_are_empty_and_wide_tables_are_split() {
        let mut limits = probed(&[1, 2]);
        limits.reads[1].ns = 0;
        assert_eq!(lines(&limits, 80)[3], "1 thread          10.0");
        assert_eq!(lines(&Limits::default(), 80), Vec::<String>::new());
        let many = lines(&probed(&(1..=32).collect::<Vec<_>>()), 80);
        assert_fits(&many.join("\n"), 80);
        assert!(many.iter().any(|line| line.ends_with("32 threads")), "{many:?}");
    }
}
