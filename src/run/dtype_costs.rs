//! The costs of narrow dtypes on a model: the effect of rounding on the verifier's own answers to held-out text. They are
//! measured once for each model and stored by the identity of the weights.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use model_files::{Dtype, Format, Goal, ModelFolder, convert};
use serde::{Deserialize, Serialize};

use super::blocking::off_thread;
use super::journal::{Event, Journal};
use super::launch::Launched;
use super::launches::{Launches, Variant, end};
use super::memory_groups::memory_shortage;
use super::reference_answers;
use super::request::Requests;
use crate::analysis::agreement::Scores;
use crate::plan::{Model, Plan, VERIFIER_DTYPE, Verification};
use crate::record::{DtypeCost, DtypeCosts, Entry, HeldOut, UnmeasuredCost};
use crate::run::process::{Cause, LaunchError};

pub const FILE_NAME: &str = "dtype-costs.json";
/// The time limit of the measurement of a model.
const MEASUREMENT_TIME: Duration = Duration::from_secs(30);
/// The time limit for the command `model reference-answers`.
const COMMAND_TIME: Duration = Duration::from_secs(300);
/// If the user set a budget, the measurement has at most the budget divided by this. The default budget does not shorten it.
const BUDGET_DIVISOR: u32 = 40;
/// With less time than this, no measurement begins.
const MIN_TIME: Duration = Duration::from_secs(2);
/// The launches of a measurement: one in f32, one for each dtype, and one in f32 again for the gaps.
const LAUNCHES: u32 = 6;
/// With fewer compared tokens, a cost would be too inexact.
const MIN_TOKENS: usize = 200;
/// The gaps of at most this many changed tokens are computed for each dtype.
const MAX_GAPS: usize = 16;
/// Stored values are rounded to 1 / this number.
const ROUNDING_DIVISOR: f64 = 1e6;

/// The measured dtypes, in the order of their launches. The verifier computes in the first two. For the others it computes in f32
/// on weights that were rounded to the format.
const DTYPES: [(&str, Option<Dtype>); 4] =
    [("bf16", None), ("f16", None), ("q8_0", Some(Dtype::Q8_0)), ("q4_0", Some(Dtype::Q4_0))];

/// The stored costs of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostsFile {
    /// The name and version of the verifier.
    pub by: String,
    /// The identity of the weights, as in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The digest of the held-out text.
    pub held_out: String,
    pub costs: Vec<DtypeCost>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<UnmeasuredCost>,
}

impl CostsFile {
    pub fn of(costs: &DtypeCosts, model: &Model, held_out: &HeldOut) -> Self {
        Self {
            by: costs.by.clone(),
            identity: model.identity.clone(),
            held_out: reference_answers::digest(held_out),
            costs: costs.costs.clone(),
            unmeasured: costs.unmeasured.clone(),
        }
    }

    /// The file's text, with a line for each dtype.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)?.replace(":[{", ":[\n{").replace("},{", "},\n{") + "\n")
    }
}

/// Records the costs of each model of the plan: the stored ones, or else those that the verifier measures now.
pub(super) async fn add(
    plan: &Plan,
    journal: &mut Journal<'_>,
    launches: &mut Launches<'_>,
    requests: &Requests<'_>,
    budget_ends: Option<Instant>,
) -> Result<()> {
    // A plan without cases is that of the command that stores answers. Its verifier is always named.
    let stores_only = plan.cases.is_empty();
    // A user who names a verifier wants its answers, not stored ones.
    if plan.verification != Verification::Usual && !stores_only {
        return Ok(());
    }
    let mut models: Vec<&Model> = Vec::new();
    for configuration in &plan.configurations {
        if !models.iter().any(|it| it.path == configuration.model.path) {
            models.push(&configuration.model);
        }
    }
    for model in models {
        let Some(held_out) = requests.prompts(&model.path).map(|it| it.held_out(&model.path)) else {
            continue;
        };
        if !stores_only {
            let (owned, text) = (model.clone(), held_out.clone());
            if let Some(stored) = off_thread(move || find(&owned, &text)).await? {
                journal.take(Entry::DtypeCosts(stored))?;
                continue;
            }
        }
        let Some(verifier) = plan.verifier_of(model) else { continue };
        let is_needed = |(index, it): (usize, &crate::plan::Configuration)| {
            it.model.path == model.path && it.unavailable.is_none() && (index != verifier || stores_only)
        };
        if !plan.configurations.iter().enumerate().any(is_needed) {
            continue;
        }
        let whole_time = if stores_only { COMMAND_TIME } else { MEASUREMENT_TIME };
        let time =
            plan.extent.set_budget().map_or(whole_time, |budget| whole_time.min(budget / BUDGET_DIVISOR));
        let time = budget_ends.map_or(time, |ends| time.min(ends.saturating_duration_since(Instant::now())));
        let shortage = memory_shortage(&plan.configurations[verifier]);
        let reason = shortage.or_else(|| (time < MIN_TIME).then(|| "the budget leaves no time".into()));
        if let Some(reason) = reason {
            journal.take(Entry::DtypeCosts(unmeasured(model, &reason)))?;
            continue;
        }
        let label = plan.configurations[verifier].label.clone();
        journal.send(Event::MeasuringDtypes { label, limit: time });
        let ends = Instant::now() + time;
        let costs =
            Measurement { journal, launches, verifier, held_out: &held_out, ends, time }.measure().await?;
        let costs = DtypeCosts { model: model.path.clone(), ..costs };
        // A measurement that was cut short, or that gave nothing, begins again in the next run.
        if time == whole_time && !stores_only && !costs.costs.is_empty() {
            let file = CostsFile::of(&costs, model, &held_out);
            // This run can use its costs even if they cannot be stored.
            if let Err(error) = off_thread(move || store(&file)).await? {
                journal
                    .warn(None, format!("the costs of dtypes were not stored for later runs: {error:#}"))?;
            }
        }
        journal.take(Entry::DtypeCosts(costs))?;
    }
    Ok(())
}

fn unmeasured(model: &Model, reason: &str) -> DtypeCosts {
    let unmeasured =
        DTYPES.iter().map(|(dtype, _)| UnmeasuredCost { dtype: (*dtype).into(), reason: reason.into() });
    DtypeCosts { model: model.path.clone(), unmeasured: unmeasured.collect(), ..DtypeCosts::default() }
}

/// The stored costs of a model, from its folder or from the data folder, if they belong to this text and these weights. An
/// unknown identity counts as equal.
fn find(model: &Model, held_out: &HeldOut) -> Option<DtypeCosts> {
    let identity = model.identity.as_ref();
    let beside = Path::new(&model.path).join(FILE_NAME);
    let in_data = identity.and_then(|it| stored_path(it));
    let digest = reference_answers::digest(held_out);
    let mut files = [Some(beside), in_data].into_iter().flatten().filter_map(|path| {
        let file: CostsFile = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let same_weights = file.identity.as_ref().zip(identity).is_none_or(|(stored, it)| stored == it);
        (same_weights && file.held_out == digest).then_some(file)
    });
    let CostsFile { by, costs, unmeasured, .. } = files.next()?;
    Some(DtypeCosts { model: model.path.clone(), by, costs, unmeasured })
}

fn stored_path(identity: &str) -> Option<PathBuf> {
    let is_name = !identity.is_empty() && identity.bytes().all(|it| it.is_ascii_alphanumeric());
    let folder = paths::data_dir().ok().filter(|_| is_name)?;
    Some(folder.join("dtype-costs").join(format!("{identity}.json")))
}

fn store(file: &CostsFile) -> Result<()> {
    let Some(path) = file.identity.as_deref().and_then(stored_path) else { return Ok(()) };
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, file.text()?)?;
    Ok(std::fs::rename(&partial, &path)?)
}

/// The answers of one launch to the windows of held-out text.
#[derive(Debug, Default)]
struct Answers {
    logprobs: Vec<Vec<Option<f64>>>,
    /// The likeliest token at each position, with its log-probability.
    likeliest: Vec<Vec<(u32, f64)>>,
}

/// A token of a window that is likeliest in a dtype, but not in f32.
#[derive(Debug, Clone, Copy)]
struct Changed {
    window: usize,
    /// The number of ids before the token.
    position: usize,
    token: u32,
}

struct Measurement<'m, 'a, 'p> {
    journal: &'m mut Journal<'a>,
    launches: &'m mut Launches<'p>,
    verifier: usize,
    held_out: &'m HeldOut,
    ends: Instant,
    time: Duration,
}

impl Measurement<'_, '_, '_> {
    async fn measure(mut self) -> Result<DtypeCosts> {
        let mut costs = DtypeCosts::default();
        let begun = Instant::now();
        let (f32, by) = match self.f32_answers().await? {
            Ok(answers) => answers,
            Err(reason) => {
                let unmeasured = |(dtype, _): &(&str, Option<Dtype>)| UnmeasuredCost {
                    dtype: (*dtype).into(),
                    reason: reason.clone(),
                };
                costs.unmeasured = DTYPES.iter().map(unmeasured).collect();
                return Ok(costs);
            }
        };
        costs.by = by;
        let one_launch = begun.elapsed();
        let mut changed: Vec<Vec<Changed>> = Vec::new();
        for (dtype, format) in DTYPES {
            // Each dtype needs about as much time as f32.
            let answers = match Instant::now() + one_launch <= self.ends {
                true => self.answers_in(dtype, format, &f32).await?,
                false => Err(self.no_time()),
            };
            match answers.and_then(|answers| compared(dtype, &f32, &answers)) {
                Ok((cost, tokens)) => {
                    costs.costs.push(cost);
                    changed.push(tokens);
                }
                Err(reason) => costs.unmeasured.push(UnmeasuredCost { dtype: dtype.into(), reason }),
            }
        }
        if changed.iter().any(|it| !it.is_empty()) && Instant::now() + one_launch <= self.ends {
            self.add_gaps(&f32, &mut costs.costs, &changed).await?;
        }
        Ok(costs)
    }

    fn no_time(&self) -> String {
        format!("the measurement had used its {} s", self.time.as_secs())
    }

    /// The answers in f32, and the name of the engine. The inner `Err` is the reason why nothing can be compared.
    async fn f32_answers(&mut self) -> Result<Result<(Answers, String), String>> {
        let left = self.ends.saturating_duration_since(Instant::now());
        let launched = self.launches.launch_for_check(self.journal, self.verifier, Some(left)).await;
        let mut launched = match LaunchError::separate(launched)? {
            Ok(Some(launched)) => launched,
            Ok(None) => return Ok(Err(self.no_time())),
            Err(failure) => return Ok(Err(failure.cause.to_string())),
        };
        let hello = launched.hello();
        let can_score = hello.is_some_and(|it| it.capabilities.score);
        let by = hello.map_or_else(String::new, |it| format!("{} {}", it.engine, it.version));
        // This launch has its share of the time. If the model is too slow, the longer texts are left out.
        let used = self.time.saturating_sub(self.ends.saturating_duration_since(Instant::now()));
        let until = Instant::now() + (self.time / LAUNCHES).saturating_sub(used);
        let facts = launched.facts();
        let dtypes = facts.map(|it| [it.weights_dtype.as_deref(), it.compute_dtype.as_deref()]);
        let is_f32 = dtypes == Some([Some(VERIFIER_DTYPE); 2]);
        let answered = match can_score && is_f32 {
            true => self.score(&mut launched, None, until).await,
            false if can_score => Err(Cause::Unsupported("the verifier does not run in f32".into())),
            false => Err(Cause::Unsupported("the verifier does not support `score`".into())),
        };
        self.finish(launched, answered.is_ok()).await?;
        let answers = answered.map_err(|cause| cause.to_string()).and_then(|answers| {
            let tokens: usize = answers.logprobs.iter().map(Vec::len).sum();
            match tokens < MIN_TOKENS {
                true => Err(format!("of {MIN_TOKENS} needed tokens, only {tokens} could be scored")),
                false => Ok((answers, by)),
            }
        });
        Ok(answers)
    }

    /// The answers in a dtype, to the texts that were scored in f32. The inner `Err` is the reason why there are none.
    async fn answers_in(
        &mut self,
        dtype: &str,
        format: Option<Dtype>,
        f32: &Answers,
    ) -> Result<Result<Answers, String>> {
        let base = self.launches.model_path(self.verifier).to_string();
        let rounded = match format {
            Some(format) => {
                let (base, ends) = (base.clone(), self.ends);
                match off_thread(move || RoundedModel::make(&base, format, ends)).await? {
                    Ok(rounded) => Some(rounded),
                    Err(_) if Instant::now() >= self.ends => return Ok(Err(self.no_time())),
                    Err(error) => return Ok(Err(format!("{error:#}"))),
                }
            }
            None => None,
        };
        let model = rounded.as_ref().map_or(base, |it| it.model.to_string_lossy().into_owned());
        let variant =
            Variant { model: &model, dtype: if rounded.is_some() { VERIFIER_DTYPE } else { dtype } };
        let left = self.ends.saturating_duration_since(Instant::now());
        let launch = self.launches.launch_variant(self.journal, self.verifier, &variant);
        let Ok(launched) = tokio::time::timeout(left, launch).await else { return Ok(Err(self.no_time())) };
        let mut launched = match LaunchError::separate(launched)? {
            Ok(launched) => launched,
            Err(failure) => return Ok(Err(failure.cause.to_string())),
        };
        let facts = launched.facts();
        let dtypes = facts.map(|it| [it.weights_dtype.as_deref(), it.compute_dtype.as_deref()]);
        let answered = match dtypes == Some([Some(variant.dtype); 2]) {
            true => self.score(&mut launched, Some(f32.logprobs.len()), self.ends).await,
            false => Err(Cause::Unsupported(format!("the verifier does not run in {}", variant.dtype))),
        };
        self.finish(launched, answered.is_ok()).await?;
        Ok(answered.map_err(|cause| match cause {
            Cause::Timeout(_) => self.no_time(),
            cause => cause.to_string(),
        }))
    }

    /// Scores the windows, short ones first. If `windows` is a number, scores so many. Otherwise scores as many as probably end
    /// before `until`, and at least `MIN_TOKENS` tokens.
    async fn score(
        &self,
        launched: &mut Launched,
        windows: Option<usize>,
        until: Instant,
    ) -> Result<Answers, Cause> {
        let mut answers = Answers::default();
        let mut per_token = Duration::ZERO;
        for ids in self.held_out.sequences.iter().take(windows.unwrap_or(usize::MAX)) {
            let tokens: usize = answers.logprobs.iter().map(Vec::len).sum();
            let is_too_long = Instant::now() + per_token * ids.len() as u32 > until;
            if windows.is_none() && is_too_long && tokens >= MIN_TOKENS {
                break;
            }
            let (begun, limit) = (Instant::now(), self.ends.saturating_duration_since(Instant::now()));
            let (logprobs, likeliest) = launched.score_with_most_likely(ids, limit).await?;
            per_token = begun.elapsed() / ids.len().max(1) as u32;
            answers.likeliest.push(likeliest.unwrap_or_default());
            answers.logprobs.push(logprobs);
        }
        Ok(answers)
    }

    /// Computes the gaps of changed tokens, those of short texts first.
    async fn add_gaps(
        &mut self,
        f32: &Answers,
        costs: &mut [DtypeCost],
        changed: &[Vec<Changed>],
    ) -> Result<()> {
        let base = self.launches.model_path(self.verifier).to_string();
        let variant = Variant { model: &base, dtype: VERIFIER_DTYPE };
        let left = self.ends.saturating_duration_since(Instant::now());
        let launch = self.launches.launch_variant(self.journal, self.verifier, &variant);
        let Ok(launched) = tokio::time::timeout(left, launch).await else { return Ok(()) };
        // The gaps are not necessary: without them, the costs bound log-probabilities, but no loss of generated tokens.
        let Ok(mut launched) = LaunchError::separate(launched)? else { return Ok(()) };
        let mut is_idle = true;
        'all: for number in 0..MAX_GAPS {
            for (cost, tokens) in costs.iter_mut().zip(changed) {
                let Some(&Changed { window, position, token }) = tokens.get(number) else { continue };
                let ids = [&self.held_out.sequences[window][..position], &[token]].concat();
                let limit = self.ends.saturating_duration_since(Instant::now());
                if limit.is_zero() {
                    break 'all;
                }
                match launched.score(&ids, limit).await {
                    Ok((logprobs, _)) => {
                        let (_, likeliest) = f32.likeliest[window][position - 1];
                        let gap = logprobs.last().copied().flatten().map(|it| (likeliest - it).max(0.0));
                        cost.gaps.extend(gap.map(rounded));
                    }
                    Err(_) => {
                        is_idle = false;
                        break 'all;
                    }
                }
            }
        }
        self.finish(launched, is_idle).await
    }

    async fn finish(&mut self, launched: Launched, is_idle: bool) -> Result<()> {
        end(self.journal, launched, is_idle).await
    }
}

/// The cost of a dtype, still without gaps, and the changed tokens.
fn compared(dtype: &str, f32: &Answers, answers: &Answers) -> Result<(DtypeCost, Vec<Changed>), String> {
    let pairs = f32.logprobs.iter().zip(&answers.logprobs).enumerate();
    let scores = Scores::of(pairs.map(|(window, (f32, it))| (window, f32.as_slice(), it.as_slice())));
    let scores = scores.filter(|it| it.missing == 0 && it.rms.is_finite());
    let scores = scores.ok_or("log-probabilities are missing or not finite")?;
    let mut changed = Vec::new();
    let mut positions = 0;
    for (window, (f32, it)) in f32.likeliest.iter().zip(&answers.likeliest).enumerate() {
        positions += f32.len().min(it.len());
        let tokens = f32.iter().zip(it).enumerate().filter(|(_, (f32, it))| f32.0 != it.0);
        changed.extend(tokens.map(|(index, (_, it))| Changed { window, position: index + 1, token: it.0 }));
    }
    let cost = DtypeCost {
        dtype: dtype.into(),
        tokens: scores.tokens,
        rms: rounded(scores.rms),
        stretch_rms: rounded(scores.worst.map_or(scores.rms, |it| it.rms)),
        positions,
        changed: changed.len(),
        gaps: Vec::new(),
    };
    Ok((cost, changed))
}

fn rounded(value: f64) -> f64 {
    (value * ROUNDING_DIVISOR).round() / ROUNDING_DIVISOR
}

/// A copy of a model in f32 whose weights were rounded to a format. Dropping it removes the files.
struct RoundedModel {
    folder: PathBuf,
    model: PathBuf,
}

impl RoundedModel {
    fn make(base: &str, dtype: Dtype, ends: Instant) -> Result<Self> {
        let name = format!("orchestrate-rounded-{}-{}", std::process::id(), dtype.as_str());
        let folder = std::env::temp_dir().join(name.to_ascii_lowercase());
        let made =
            Self { model: folder.join(format!("model-{}", dtype.as_str().to_ascii_lowercase())), folder };
        let until = |_, _| match Instant::now() < ends {
            true => Ok(()),
            false => bail!("no time is left"),
        };
        let (gguf, rounded) = (made.folder.join("rounded.gguf"), made.model.clone());
        // A killed run with the same process number may have left files.
        let _ = std::fs::remove_dir_all(&made.folder);
        std::fs::create_dir_all(&made.folder).with_context(|| made.folder.display().to_string())?;
        convert(&ModelFolder::open(base)?, &Goal { format: Format::Gguf, dtype, out: gguf.clone() }, &until)?;
        let widened = Goal { format: Format::Safetensors, dtype: Dtype::F32, out: rounded };
        convert(&ModelFolder::open(&gguf)?, &widened, &until)?;
        Ok(made)
    }
}

impl Drop for RoundedModel {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(difference: f64, changed: &[usize]) -> Answers {
        let likeliest = |position: usize| (if changed.contains(&position) { 8 } else { 7 }, -0.5);
        Answers {
            logprobs: vec![vec![Some(-1.0 - difference); 200]],
            likeliest: vec![(0..200).map(likeliest).collect()],
        }
    }

    #[test]
    fn a_cost_has_the_difference_from_f32_and_counts_the_changed_tokens() {
        let (cost, changed) = compared("bf16", &answers(0.0, &[]), &answers(0.01, &[3, 90])).unwrap();
        assert_eq!((cost.rms, cost.stretch_rms, cost.tokens), (0.01, 0.01, 200));
        assert_eq!((cost.positions, cost.changed), (200, 2));
        assert_eq!(changed.iter().map(|it| (it.position, it.token)).collect::<Vec<_>>(), [(4, 8), (91, 8)]);
        let infinite = Answers { logprobs: vec![vec![None; 200]], ..answers(0.0, &[]) };
        assert!(compared("f16", &answers(0.0, &[]), &infinite).is_err());
    }
}
