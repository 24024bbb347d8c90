//! Plans the files for a set of tensors, split like transformers does: shards of 5 GB and an index.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::Dtype;
use crate::architecture::Part;
use crate::write::{FilePlan, TensorPlan};

/// The shard size of transformers.
const SHARD_BYTES: u64 = 5_000_000_000;

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The files, and the index if there are several.
pub(crate) fn plan(parts: &[Part], dtypes: &[Dtype]) -> Result<(Vec<FilePlan>, Option<String>)> {
    let bytes = |part: usize| dtypes[part].bytes(parts[part].elements());
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let mut held = 0;
    for part in 0..parts.len() {
        if held > 0 && held + bytes(part) > SHARD_BYTES {
            shards.push(Vec::new());
            held = 0;
        }
        held += bytes(part);
        if let Some(shard) = shards.last_mut() {
            shard.push(part);
        }
    }
    let count = shards.len();
    let name = |shard: usize| match count {
        1 => "model.safetensors".to_string(),
        count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
    };
    let files = shards.iter().enumerate().map(|(shard, held)| file(name(shard), held, parts, dtypes));
    let files = files.collect::<Result<Vec<_>>>()?;
    let index = (count > 1).then(|| {
        let names = shards.iter().enumerate().flat_map(|(shard, held)| {
            held.iter().map(move |&part| (parts[part].name.clone(), Value::from(name(shard))))
        });
        let total: u64 = (0..parts.len()).map(bytes).sum();
        let index =
            json!({ "metadata": { "total_size": total }, "weight_map": names.collect::<Map<_, _>>() });
        format!("{index:#}\n")
    });
    Ok((files, index))
}

fn file(name: String, held: &[usize], parts: &[Part], dtypes: &[Dtype]) -> Result<FilePlan> {
    let (mut header, mut end) = (Map::new(), 0);
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut tensors = Vec::new();
    for &part in held {
        let (begin, dtype) = (end, dtypes[part]);
        end += dtype.bytes(parts[part].elements());
        let entry =
            json!({ "dtype": dtype.as_str(), "shape": parts[part].shape, "data_offsets": [begin, end] });
        header.insert(parts[part].name.clone(), entry);
        tensors.push(TensorPlan { part, dtype, offset: begin });
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Tensors begin at a multiple of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    let start = 8 + text.len() as u64;
    tensors.iter_mut().for_each(|tensor| tensor.offset += start);
    let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    Ok(FilePlan { name, header, tensors, literals: Vec::new(), bytes: start + end })
}
