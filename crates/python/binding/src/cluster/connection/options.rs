//! How tasks want to be run.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::collections::HashMap;
use treadle_messages::TaskOptions;
use treadle_node_client::Submission;

/// The options of a submission: each mapping is read once.
pub(super) struct OptionSets<'py> {
    /// By address; the mappings are kept, so that addresses are not used again.
    known: HashMap<usize, (u32, Bound<'py, PyAny>)>,
    default: u32,
    /// By index, that of the same with effects.
    effects: HashMap<u32, u32>,
}

impl<'py> OptionSets<'py> {
    /// `common` are those of tasks that have none of their own.
    pub(super) fn new(
        submission: &mut Submission<Py<PyAny>>,
        common: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let common = match common {
            Some(common) if !common.is_none() => read(common)?,
            _ => TaskOptions::default(),
        };
        Ok(Self {
            known: HashMap::new(),
            effects: HashMap::new(),
            default: submission.options(common),
        })
    }

    pub(super) fn default(&self) -> u32 {
        self.default
    }

    /// The index of a task's own options.
    pub(super) fn own(
        &mut self,
        submission: &mut Submission<Py<PyAny>>,
        own: Option<Bound<'py, PyAny>>,
    ) -> PyResult<u32> {
        let Some(own) = own.filter(|own| !own.is_none()) else {
            return Ok(self.default);
        };
        let address = own.as_ptr().addr();
        if let Some((index, _)) = self.known.get(&address) {
            return Ok(*index);
        }
        let index = submission.options(read(&own)?);
        self.known.insert(address, (index, own));
        Ok(index)
    }

    /// The same options, for a task that does more than return a value. `lasting`: what it does stays when
    /// its worker is lost. That is the same for all of a submission.
    pub(super) fn with_effects(
        &mut self,
        submission: &mut Submission<Py<PyAny>>,
        options: u32,
        lasting: bool,
    ) -> u32 {
        let known = self.effects.entry(options);
        *known.or_insert_with(|| {
            let options = submission.options_at(options).clone();
            submission.options(TaskOptions {
                effects: true,
                lasting,
                ..options
            })
        })
    }
}

fn read(options: &Bound<'_, PyAny>) -> PyResult<TaskOptions> {
    let mut read = TaskOptions::default();
    for item in options.cast::<PyMapping>()?.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        if value.is_none() {
            continue;
        }
        match name.as_str() {
            "priority" => read.priority = value.extract()?,
            "retries" => read.retries = value.extract()?,
            "workers" => read.workers = value.extract()?,
            "allow_other" => read.allow_other = value.is_truthy()?,
            "resources" => {
                let resources: HashMap<String, f64> = value.extract()?;
                read.resources = resources.into_iter().collect();
                read.resources.sort_by(|one, other| one.0.cmp(&other.0));
            }
            "actor" => read.actor = value.is_truthy()?,
            other => {
                return Err(PyTypeError::new_err(format!(
                    "{other:?} is no option of a task: priority, retries, workers, allow_other, \
                     resources and actor are"
                )));
            }
        }
    }
    Ok(read)
}
