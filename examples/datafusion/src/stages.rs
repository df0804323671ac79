//! A physical plan, cut where rows change their partition.

use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};

use crate::exchange::{Exchange, ShuffleReaderExec, ShuffleWriterExec, Spread};

/// A plan in stages. Processes that make the same plan get the same stages.
pub struct Stages {
    /// Each of them needs those before. The partitions of a stage are the maps of its exchange.
    pub before: Vec<Arc<ShuffleWriterExec>>,
    /// The last one, of one partition: the result.
    pub last: Arc<dyn ExecutionPlan>,
}

impl Stages {
    /// Cuts a plan at its exchanges.
    ///
    /// # Errors
    /// An exchange spreads rows in another way than by a hash.
    pub fn of(plan: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let plan: Arc<dyn ExecutionPlan> = match plan.output_partitioning().partition_count() {
            1 => plan,
            _ => Arc::new(CoalescePartitionsExec::new(plan)),
        };
        let mut before = Vec::new();
        let last = cut(plan, &mut before)?;
        Ok(Self { before, last })
    }
}

fn cut(
    plan: Arc<dyn ExecutionPlan>,
    stages: &mut Vec<Arc<ShuffleWriterExec>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let children = plan.children().into_iter().cloned();
    let children = children.map(|child| cut(child, stages));
    let children = children.collect::<Result<Vec<_>>>()?;
    if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        let spread = match repartition.partitioning() {
            Partitioning::Hash(keys, _) => Spread::Hash(keys.clone()),
            other => {
                let text =
                    format!("rows are spread by {other}, and this example does so by hashes");
                return Err(DataFusionError::NotImplemented(text));
            }
        };
        return Ok(exchanged(&plan, children[0].clone(), spread, stages));
    }
    // One process merges what all have: a partition each, as it is.
    let merges = plan.is::<SortPreservingMergeExec>() || plan.is::<CoalescePartitionsExec>();
    let children = match merges && !children[0].is::<ShuffleReaderExec>() {
        true => {
            let child = children[0].clone();
            vec![exchanged(&child, child.clone(), Spread::Forward, stages)]
        }
        false => children,
    };
    match children.is_empty() {
        true => Ok(plan),
        false => plan.with_new_children(children),
    }
}

/// A reader in the place of a node, and the stage that writes what it reads.
fn exchanged(
    replaced: &Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    spread: Spread,
    stages: &mut Vec<Arc<ShuffleWriterExec>>,
) -> Arc<dyn ExecutionPlan> {
    let properties = replaced.properties();
    let exchange = Arc::new(Exchange::new(
        input.schema(),
        spread,
        input.output_partitioning().partition_count(),
        properties.output_partitioning().partition_count(),
    ));
    let reader = ShuffleReaderExec::new(exchange.clone(), properties.clone());
    stages.push(Arc::new(ShuffleWriterExec::new(exchange, input, false)));
    Arc::new(reader)
}
