//! An exchange: the operator that writes rows to a shuffle, and the one that reads them.
//!
//! A map of the shuffle is a partition of the writer's input. It has one record for each partition that it has rows for: a stream
//! of Arrow's IPC format. A map that runs again has to make the same bytes, since a record is what servers compare. These do,
//! as their input is in memory.

use std::fmt;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use datafusion::arrow::array::{Array, BinaryArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use treadle_shuffle_client::{Generation, Shuffle, Wait};

/// How long a map may wait for servers, and a reader for rows.
const PATIENCE: Duration = Duration::from_secs(60);

/// How rows get to their partitions.
#[derive(Clone, Debug)]
pub enum Spread {
    /// By a hash of these.
    Hash(Vec<Arc<dyn PhysicalExpr>>),
    /// Those of a map are a partition.
    Forward,
}

/// What a writer and a reader have together.
pub struct Exchange {
    schema: SchemaRef,
    spread: Spread,
    maps: usize,
    partitions: usize,
    shuffle: OnceLock<Arc<Shuffle>>,
    generation: Mutex<Option<Generation>>,
}

impl Exchange {
    pub fn new(schema: SchemaRef, spread: Spread, maps: usize, partitions: usize) -> Self {
        Self {
            schema,
            spread,
            maps,
            partitions,
            shuffle: OnceLock::new(),
            generation: Mutex::default(),
        }
    }

    /// The shuffle that its rows go through.
    pub fn attach(&self, shuffle: Shuffle) -> Arc<Shuffle> {
        Arc::clone(self.shuffle.get_or_init(|| Arc::new(shuffle)))
    }

    /// From now on what was committed can be read.
    pub fn committed(&self, generation: Generation) {
        *self.generation.lock().expect("nobody panics with it") = Some(generation);
    }

    pub fn maps(&self) -> u32 {
        self.maps as u32
    }

    pub fn partitions(&self) -> u32 {
        self.partitions as u32
    }

    fn shuffle(&self) -> Result<Arc<Shuffle>> {
        let shuffle = self.shuffle.get().cloned();
        shuffle.ok_or_else(|| DataFusionError::Internal("the exchange has no shuffle yet".into()))
    }

    /// Writes the rows of a map. Returns the bytes of the receipt.
    async fn write(
        self: Arc<Self>,
        map: u32,
        again: bool,
        mut input: SendableRecordBatchStream,
    ) -> Result<Vec<u8>> {
        let shuffle = self.shuffle()?;
        let mut partitioner = match &self.spread {
            Spread::Hash(keys) => {
                let (keys, partitions) = (keys.clone(), self.partitions);
                let time = Time::new();
                Some(BatchPartitioner::new_hash_partitioner(
                    keys, partitions, time,
                )?)
            }
            Spread::Forward => None,
        };
        let mut streams = Streams::new(&self.schema, self.partitions);
        while let Some(batch) = input.next().await {
            let batch = batch?;
            match &mut partitioner {
                Some(by_hash) => by_hash.partition(batch, |to, rows| streams.add(to, &rows))?,
                None => streams.add(map as usize, &batch)?,
            }
        }
        let records = streams.finish()?;
        blocking(move |wait| {
            let mut writer = shuffle.writer(map);
            if again {
                writer = writer.again();
            }
            for (partition, record) in records {
                writer.write(partition, &record)?;
            }
            Ok(writer.finish(wait)?.to_bytes())
        })
        .await
    }

    async fn read(self: Arc<Self>, partition: u32) -> Result<Vec<RecordBatch>> {
        let shuffle = self.shuffle()?;
        let generation = *self.generation.lock().expect("nobody panics with it");
        let generation = generation
            .ok_or_else(|| DataFusionError::Internal("the exchange is not committed yet".into()))?;
        let rows = blocking(move |wait| shuffle.reader(generation).read(partition, wait)).await?;
        let mut batches = Vec::new();
        for record in rows.iter() {
            for batch in StreamReader::try_new(Cursor::new(record), None)? {
                batches.push(batch?);
            }
        }
        Ok(batches)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (maps, partitions) = (self.maps, self.partitions);
        match &self.spread {
            Spread::Hash(keys) => write!(f, "{maps} maps, {partitions} partitions by {keys:?}"),
            Spread::Forward => write!(f, "{maps} maps, as many partitions"),
        }
    }
}

/// The rows of a map for each partition, as they are written.
struct Streams {
    schema: SchemaRef,
    of_partitions: Vec<Option<StreamWriter<Vec<u8>>>>,
}

impl Streams {
    fn new(schema: &SchemaRef, partitions: usize) -> Self {
        Self {
            schema: Arc::clone(schema),
            of_partitions: (0..partitions).map(|_| None).collect(),
        }
    }

    fn add(&mut self, partition: usize, rows: &RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let stream = match &mut self.of_partitions[partition] {
            Some(stream) => stream,
            none => none.insert(StreamWriter::try_new(Vec::new(), &self.schema)?),
        };
        Ok(stream.write(rows)?)
    }

    /// Partitions that have rows, with their records.
    fn finish(self) -> Result<Vec<(u32, Vec<u8>)>> {
        let streams = (0..).zip(self.of_partitions);
        let streams = streams.filter_map(|(partition, stream)| Some((partition, stream?)));
        streams
            .map(|(partition, stream)| Ok((partition, stream.into_inner()?)))
            .collect()
    }
}

/// Tells a call that waits for servers that its query was cancelled.
struct Cancelling(Arc<AtomicBool>);

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a call of the client on a thread that may wait. It is interrupted when the future is dropped.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce(&mut Wait<'_>) -> Result<T, treadle_shuffle_client::Error> + Send + 'static,
) -> Result<T> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _cancelling = Cancelling(Arc::clone(&cancelled));
    let called = tokio::task::spawn_blocking(move || {
        let mut interrupted = || cancelled.load(Ordering::Relaxed);
        call(&mut Wait::within(PATIENCE).unless(&mut interrupted))
    });
    let done = called
        .await
        .map_err(|error| DataFusionError::External(Box::new(error)))?;
    done.map_err(|error| DataFusionError::External(Box::new(error)))
}

/// Writes its input to a shuffle: each of its partitions is a map, and returns a receipt.
#[derive(Debug)]
pub struct ShuffleWriterExec {
    exchange: Arc<Exchange>,
    input: Arc<dyn ExecutionPlan>,
    /// Maps have run before, and their rows were lost.
    again: bool,
    properties: Arc<PlanProperties>,
}

impl ShuffleWriterExec {
    pub fn new(exchange: Arc<Exchange>, input: Arc<dyn ExecutionPlan>, again: bool) -> Self {
        let receipt = Field::new("receipt", DataType::Binary, false);
        let schema = Arc::new(Schema::new(vec![receipt]));
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(exchange.maps),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        Self {
            exchange,
            input,
            again,
            properties,
        }
    }

    pub fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// Runs a map in this process. Returns the bytes of its receipt.
    pub async fn run(&self, map: u32, again: bool, context: Arc<TaskContext>) -> Result<Vec<u8>> {
        let writer = Self::new(self.exchange.clone(), self.input.clone(), again);
        let batches = writer.execute(map as usize, context)?;
        let batches: Vec<RecordBatch> = batches.try_collect().await?;
        let receipts = batches.iter().filter_map(|batch| {
            let column = batch.column(0).as_any().downcast_ref::<BinaryArray>()?;
            Some(column.value(0).to_vec())
        });
        let missing = || DataFusionError::Internal("a map has returned no receipt".into());
        receipts.last().ok_or_else(missing)
    }
}

impl DisplayAs for ShuffleWriterExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShuffleWriterExec: {:?}", self.exchange)
    }
}

impl ExecutionPlan for ShuffleWriterExec {
    fn name(&self) -> &str {
        "ShuffleWriterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return Err(DataFusionError::Internal("a writer has one input".into()));
        };
        Ok(Arc::new(Self::new(
            self.exchange.clone(),
            input,
            self.again,
        )))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let written = self
            .exchange
            .clone()
            .write(partition as u32, self.again, input);
        let stream = futures::stream::once(receipt(self.schema(), written));
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            stream,
        )))
    }
}

async fn receipt(
    schema: SchemaRef,
    written: impl Future<Output = Result<Vec<u8>>>,
) -> Result<RecordBatch> {
    let bytes = written.await?;
    let column = BinaryArray::from_vec(vec![&bytes[..]]);
    Ok(RecordBatch::try_new(schema, vec![Arc::new(column)])?)
}

/// Reads the partitions of a shuffle that was committed.
#[derive(Debug)]
pub struct ShuffleReaderExec {
    exchange: Arc<Exchange>,
    properties: Arc<PlanProperties>,
}

impl ShuffleReaderExec {
    /// In the place of a node with these properties.
    pub fn new(exchange: Arc<Exchange>, properties: Arc<PlanProperties>) -> Self {
        Self {
            exchange,
            properties,
        }
    }
}

impl DisplayAs for ShuffleReaderExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShuffleReaderExec: {:?}", self.exchange)
    }
}

impl ExecutionPlan for ShuffleReaderExec {
    fn name(&self) -> &str {
        "ShuffleReaderExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let read = self.exchange.clone().read(partition as u32);
        let batches = futures::stream::once(read);
        let batches = batches.map_ok(|all| {
            futures::stream::iter(
                all.into_iter()
                    .map(Result::<RecordBatch, DataFusionError>::Ok),
            )
        });
        let stream = batches.try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            stream,
        )))
    }
}
