//! The files that a plan reads, compared with those of an earlier plan.

use std::collections::BTreeMap;

use super::texts::OwnText;
use super::{Plan, Prompt};

impl Plan {
    /// The files of both plans whose content differs: texts to score, prompts, lengths and models.
    pub fn changed_inputs(&self, earlier: &Plan) -> Vec<String> {
        let before = earlier.inputs();
        let has_changed = |(input, digest): &(String, &str)| before.get(input).is_some_and(|it| it != digest);
        self.inputs().into_iter().filter(has_changed).map(|(input, _)| input).collect()
    }

    /// The digest of each file. A model whose weights are not identified is left out.
    fn inputs(&self) -> BTreeMap<String, &str> {
        let texts = self.cases.iter().filter_map(|case| {
            let file = case.workload.scored_text.as_ref()?;
            Some((format!("the text `{}`", file.path), file.sha256.as_str()))
        });
        let prompts = self.cases.iter().filter_map(|case| match &case.workload.prompt {
            Prompt::Text(OwnText::File(file)) => {
                Some((format!("the file of prompts `{}`", file.path), file.digest.as_str()))
            }
            Prompt::Text(OwnText::One(_)) | Prompt::Tokens(_) => None,
        });
        let lengths = self.cases.iter().filter_map(|case| {
            let file = case.workload.shape.lengths.file()?;
            Some((format!("the file of lengths `{}`", file.path()), file.digest()))
        });
        // The path of a model from a hub changes with its version, and the name does not.
        let models = self.configurations.iter().filter_map(|it| {
            let identity = it.model.identity.as_deref()?;
            Some((format!("the model `{}`", it.model.name), identity))
        });
        texts.chain(prompts).chain(lengths).chain(models).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Case, Configuration, Model, Plan, Prompt, Workload};

    #[test]
    fn a_new_version_of_a_model_has_changed_even_at_another_path() {
        let plan = |path: &str, identity: Option<&str>| {
            let model = Model {
                name: "owner/name".into(),
                path: path.into(),
                identity: identity.map(String::from),
                ..Model::default()
            };
            Plan {
                configurations: vec![Configuration { model, ..Configuration::default() }],
                ..Plan::default()
            }
        };
        let earlier = plan("/hub/snapshots/1", Some("a"));
        assert_eq!(plan("/hub/snapshots/2", Some("b")).changed_inputs(&earlier), ["the model `owner/name`"]);
        for same in [plan("/hub/snapshots/2", Some("a")), plan("/hub/snapshots/1", None)] {
            assert!(same.changed_inputs(&earlier).is_empty());
        }
    }

    #[test]
    fn a_file_of_lengths_has_changed_if_its_content_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.csv").to_string_lossy().into_owned();
        let plan = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut workload = Workload::specimen(Prompt::Tokens(8));
            workload.shape.lengths = path.parse().unwrap();
            Plan { cases: vec![Case { configuration: 0, workload }], ..Plan::default() }
        };
        let [earlier, same, other] = ["8,2\n", "8,2\n", "8,3\n"].map(plan);
        assert!(same.changed_inputs(&earlier).is_empty());
        assert_eq!(other.changed_inputs(&earlier), [format!("the file of lengths `{path}`")]);
    }
}
