//! Tables like those of TPC-H, with integers for money and days, so that results can be compared to the last digit.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::{SessionConfig, SessionContext};

/// A query, and what it shows.
#[derive(Clone, Copy)]
pub struct Query {
    pub name: &'static str,
    pub about: &'static str,
    pub sql: &'static str,
    /// A server is killed when the maps of the first exchange are written.
    pub kills_a_server: bool,
}

const Q1: &str = "select returnflag, linestatus, count(*) as items, sum(quantity) as quantity, sum(price) as price, \
     sum(price * (100 - discount)) as discounted, min(shipdate) as earliest, max(shipdate) as latest \
     from lineitem where shipdate <= 2400 group by returnflag, linestatus order by returnflag, linestatus";

const Q3: &str = "select lineitem.orderkey, sum(price * (100 - discount)) as revenue, orderdate \
     from customer join orders on customer.custkey = orders.custkey \
     join lineitem on lineitem.orderkey = orders.orderkey \
     where segment = 'BUILDING' and orderdate < 1200 and shipdate > 1200 \
     group by lineitem.orderkey, orderdate order by revenue desc, lineitem.orderkey limit 10";

pub const QUERIES: [Query; 3] = [
    Query {
        name: "q1",
        about: "an aggregate like TPC-H's first query",
        sql: Q1,
        kills_a_server: false,
    },
    Query {
        name: "q3",
        about: "two joins and an aggregate like TPC-H's third query",
        sql: Q3,
        kills_a_server: false,
    },
    Query {
        name: "q3",
        about: "the same, while a shuffle server is killed",
        sql: Q3,
        kills_a_server: true,
    },
];

/// Partitions of tables and of exchanges.
const PARTITIONS: usize = 4;
const CUSTOMERS: i64 = 1_500;
const ORDERS: i64 = 15_000;
const LINES: i64 = 60_000;

/// A context with the tables. Every process has the same ones.
pub fn context() -> Result<SessionContext> {
    let mut config = SessionConfig::new()
        .with_target_partitions(PARTITIONS)
        // Both sides of a join are exchanged, however small they are.
        .set_usize(
            "datafusion.optimizer.hash_join_single_partition_threshold",
            0,
        )
        .set_usize(
            "datafusion.optimizer.hash_join_single_partition_threshold_rows",
            0,
        );
    // It changes who reads a partition within a process, and there are several.
    config
        .options_mut()
        .optimizer
        .enable_round_robin_repartition = false;
    // Filters that one side of a join computes for the other do not reach other processes.
    config = config.set_bool("datafusion.optimizer.enable_dynamic_filter_pushdown", false);
    let context = SessionContext::new_with_config(config);
    table(&context, "customer", CUSTOMERS, customer)?;
    table(&context, "orders", ORDERS, orders)?;
    table(&context, "lineitem", LINES, lineitem)?;
    Ok(context)
}

type Columns = Vec<(&'static str, ArrayRef)>;

fn table(
    context: &SessionContext,
    name: &str,
    rows: i64,
    columns: fn(&[i64]) -> Columns,
) -> Result<()> {
    let partition = |number: usize| {
        let keys: Vec<i64> = (number as i64..rows).step_by(PARTITIONS).collect();
        Ok(vec![RecordBatch::try_from_iter(columns(&keys))?])
    };
    let partitions = (0..PARTITIONS).map(partition).collect::<Result<Vec<_>>>()?;
    let schema = partitions[0][0].schema();
    context.register_table(name, Arc::new(MemTable::try_new(schema, partitions)?))?;
    Ok(())
}

/// A number below `most` that depends on a key and on what it is for.
fn draw(key: i64, what: i64, most: i64) -> i64 {
    let mut bits = (key as u64) ^ (what as u64).rotate_left(32);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) % most as u64) as i64
}

fn integers(keys: &[i64], value: impl Fn(i64) -> i64) -> ArrayRef {
    Arc::new(keys.iter().map(|&key| value(key)).collect::<Int64Array>())
}

fn texts(keys: &[i64], what: i64, words: &[&str]) -> ArrayRef {
    let word = |&key: &i64| Some(words[draw(key, what, words.len() as i64) as usize]);
    Arc::new(keys.iter().map(word).collect::<StringArray>())
}

fn customer(keys: &[i64]) -> Columns {
    vec![
        ("custkey", integers(keys, |key| key)),
        (
            "segment",
            texts(
                keys,
                1,
                &["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY"],
            ),
        ),
    ]
}

fn orders(keys: &[i64]) -> Columns {
    vec![
        ("orderkey", integers(keys, |key| key)),
        ("custkey", integers(keys, |key| draw(key, 2, CUSTOMERS))),
        ("orderdate", integers(keys, |key| draw(key, 3, 2_400))),
    ]
}

fn lineitem(keys: &[i64]) -> Columns {
    vec![
        ("orderkey", integers(keys, |key| draw(key, 4, ORDERS))),
        ("quantity", integers(keys, |key| 1 + draw(key, 5, 50))),
        ("price", integers(keys, |key| 1 + draw(key, 6, 100_000))),
        ("discount", integers(keys, |key| draw(key, 7, 11))),
        ("shipdate", integers(keys, |key| draw(key, 8, 2_500))),
        ("returnflag", texts(keys, 9, &["A", "N", "R"])),
        ("linestatus", texts(keys, 10, &["F", "O"])),
    ]
}
