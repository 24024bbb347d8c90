//! `orchestrate model cache`: the format conversions of runs.

use std::fmt::Write as _;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use model_files::{conversions, size};

use crate::commands::output;
use crate::shell::Usage;
use crate::shell::parse_bytes;

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct CacheArgs {
    /// List the stored conversions (default)
    #[arg(long)]
    pub list: bool,
    /// Set the limit of the cache (`20GB`); the least recently used conversions are removed first
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Remove all stored conversions
    #[arg(long)]
    pub clear: bool,
}

pub fn cache(arguments: &CacheArgs) -> Result<u8> {
    let mut text = String::new();
    if arguments.clear {
        writeln!(text, "removed {}", size(conversions::clear()?))?;
    } else if let Some(limit) = &arguments.limit {
        let unknown = || Usage(format!("invalid size `{limit}`\nhint: --limit 20GB"));
        let limit = parse_bytes(limit).ok_or_else(unknown)?;
        let removed = conversions::set_limit(limit)?;
        writeln!(text, "the limit of conversions is {}; removed {}", size(limit), size(removed))?;
    } else {
        list(&mut text)?;
    }
    output::succeed(text)
}

fn list(text: &mut String) -> Result<()> {
    let (kept, limit) = (conversions::list()?, conversions::limit()?);
    for conversion in &kept {
        let age = SystemTime::now().duration_since(conversion.used).unwrap_or_default();
        let hours = age.as_secs() / 3600;
        writeln!(
            text,
            "{} as {} {}: {}, used {}\n    {}",
            conversion.model,
            conversion.format,
            conversion.dtype,
            size(conversion.bytes),
            match hours {
                0 => "within the hour".into(),
                1..48 => format!("{hours} h ago"),
                _ => format!("{} days ago", hours / 24),
            },
            conversion.folder.display()
        )?;
    }
    let held = kept.iter().map(|conversion| conversion.bytes).sum();
    let (count, plural) = (kept.len(), if kept.len() == 1 { "" } else { "s" });
    writeln!(text, "{} in {count} conversion{plural}, limit {}", size(held), size(limit))?;
    Ok(())
}
