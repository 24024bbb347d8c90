//! `orchestrate model cache`: the format conversions of runs.

use std::fmt::Write as _;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use model_files::{conversions, size};

use crate::cli::exit_code::DONE;
use crate::commands::output;
use crate::shell::Usage;
use crate::shell::parse_bytes;

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct CacheArgs {
    /// Say what is in the cache (the default)
    #[arg(long)]
    pub list: bool,
    /// Keep it below this size (`20GB`), now and from now on; what was not used for longest goes first
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Remove everything in it
    #[arg(long)]
    pub clear: bool,
}

pub fn cache(arguments: &CacheArgs) -> Result<u8> {
    let mut text = String::new();
    if arguments.clear {
        writeln!(text, "removed {}", size(conversions::clear()?))?;
    } else if let Some(limit) = &arguments.limit {
        let unknown = || Usage(format!("no size: `{limit}`\nhint: a number and B, KB, MB, GB or TB: `20GB`"));
        let limit = parse_bytes(limit).ok_or_else(unknown)?;
        let removed = conversions::set_limit(limit)?;
        writeln!(text, "conversions are kept up to {}; removed {}", size(limit), size(removed))?;
    } else {
        list(&mut text)?;
    }
    output::print(text.as_bytes())?;
    Ok(DONE)
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
    writeln!(text, "{} in {count} conversion{plural}, of {} that may be kept", size(held), size(limit))?;
    Ok(())
}
