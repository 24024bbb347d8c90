//! Format conversions of a model. An engine that reads another format than the model's gets a conversion. It is made before any
//! time of that engine is measured, and stored for later runs. The record names it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, bail};
use model_files::{Dtype, Format, ModelFolder, conversions, own_dtype};
use protocol::HelloFacts;
use tokio::sync::mpsc;

use super::journal::{Event, Journal};
use crate::plan::Plan;
use crate::record::Converted;
use crate::run::process::{Cause, EngineFailure, LaunchError, Stage};

/// Configurations whose engine gets a conversion of the model.
pub(super) struct Conversions<'a> {
    plan: &'a Plan,
    converted: BTreeMap<usize, Converted>,
}

impl<'a> Conversions<'a> {
    pub fn of(plan: &'a Plan) -> Self {
        Self { plan, converted: BTreeMap::new() }
    }

    pub fn conversion_for(&self, configuration: usize) -> Option<&Converted> {
        self.converted.get(&configuration)
    }

    /// The model's path for a configuration: its own, or that of its conversion.
    pub fn model_path(&self, configuration: usize) -> &str {
        let unconverted = &self.plan.configurations[configuration].model.path;
        self.conversion_for(configuration).map_or(unconverted, |converted| &converted.path)
    }

    /// Gives the engine a conversion if it does not read the model's format. Returns whether this call did so.
    pub async fn convert_for(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        hello: &HelloFacts,
    ) -> Result<bool, LaunchError> {
        let configuration = &self.plan.configurations[index];
        let formats = &hello.capabilities.formats;
        let reads = |format: &str| formats.iter().any(|it| it == format);
        let Some(model_format) = configuration.model.format.as_deref() else { return Ok(false) };
        if self.converted.contains_key(&index) || formats.is_empty() || reads(model_format) {
            return Ok(false);
        }
        let to = [Format::Safetensors, Format::Gguf].into_iter().find(|format| reads(format.as_str()));
        let refused = |error: anyhow::Error| {
            LaunchError::from(EngineFailure::without_process(
                Stage::Load,
                Cause::reported_unsupported(&error),
            ))
        };
        let Some(to) = to else {
            let formats = formats.join("`, `");
            return Err(refused(anyhow!("reads `{formats}`, and the model is `{model_format}`")));
        };
        let (path, dtype) = (configuration.model.path.clone(), configuration.dtype.clone());
        let converted = convert(journal, &configuration.label, path, to, dtype).await;
        let converted = converted.map_err(|error| {
            let to = to.as_str();
            refused(error.context(format!("reads `{to}`, and the model cannot be converted to it")))
        })?;
        self.converted.insert(index, converted);
        Ok(true)
    }
}

async fn convert(
    journal: &mut Journal<'_>,
    label: &str,
    path: String,
    to: Format,
    requested: Option<String>,
) -> Result<Converted> {
    let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
    let (progress, mut fractions) = mpsc::unbounded_channel();
    let is_stopped = Arc::clone(&stop.0);
    let work = tokio::task::spawn_blocking(move || {
        let model = ModelFolder::open(&path)?;
        let dtype = dtype(&model, to, requested.as_deref())?;
        let path = conversions::convert_cached(&model, to, dtype, &|done, total| {
            if is_stopped.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            // After an interrupt, no receiver exists.
            let _ = progress.send(done as f64 / total as f64);
            Ok(())
        })?;
        anyhow::Ok(Converted {
            format: to.as_str().into(),
            dtype: dtype.as_str().to_ascii_lowercase(),
            path: path.to_string_lossy().into_owned(),
        })
    });
    while let Some(fraction) = fractions.recv().await {
        let phase = format!("converting the model to {}", to.as_str());
        journal.send(Event::Loading { label: label.into(), phase, fraction: Some(fraction) });
    }
    work.await?
}

/// The dtype of the conversion. The first choice is the requested one, then the model's own, if the format can hold it. The
/// last choice is f32, in which no value changes.
fn dtype(model: &ModelFolder, to: Format, requested: Option<&str>) -> Result<Dtype> {
    let requested = requested.and_then(Dtype::named);
    let model_dtype = own_dtype(model)?;
    let candidates = [requested, Some(model_dtype)].into_iter().flatten();
    let mut candidates = candidates.filter(|dtype| model_files::check_writable(to, *dtype).is_ok());
    Ok(candidates.next().unwrap_or(Dtype::F32))
}

/// Stops the conversion when nothing waits for it any more.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
