//! Finds the files with a model's weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{INDEX, read_header};
use crate::shown::shown;

/// The safetensors files of the model in a folder: those of its index, else `model.safetensors`, else the only one.
pub(crate) fn shards(folder: &Path, found: &[String]) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return shards_of_index(folder, &index).with_context(|| format!("`{}`", index.display()));
    }
    match found {
        [only] => Ok(vec![folder.join(only)]),
        several if several.iter().any(|name| name == "model.safetensors") => {
            Ok(vec![folder.join("model.safetensors")])
        }
        several => {
            bail!("model `{}`: {} safetensors files and no `{INDEX}`", folder.display(), several.len())
        }
    }
}

fn shards_of_index(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_slice(&std::fs::read(index)?)?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    ensure!(!names.is_empty(), "`weight_map` is empty");
    let mut paths = Vec::new();
    for name in names {
        // A shard must be in the folder; an index that points elsewhere is broken or malicious.
        let named = shown(name);
        ensure!(Path::new(name).file_name() == Some(name.as_ref()), "`{named}` is no file name");
        let path = folder.join(name);
        ensure!(path.is_file(), "shard `{named}` is missing");
        let held: BTreeSet<String> = read_header(&path, 0)?.into_iter().map(|tensor| tensor.name).collect();
        let absent = weight_map.iter().find(|(tensor, shard)| *shard == name && !held.contains(*tensor));
        let absent = absent.map(|(tensor, _)| shown(tensor));
        ensure!(absent.is_none(), "tensor `{}` is not in `{named}`", absent.unwrap_or_default());
        paths.push(path);
    }
    Ok(paths)
}
