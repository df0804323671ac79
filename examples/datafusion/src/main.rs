//! Queries of DataFusion in two processes, whose exchanges go through Treadle's shuffle service. See `README.md`.
//!
//! | module | concept |
//! | --- | --- |
//! | `tables` | tables like TPC-H's, and queries |
//! | `stages` | a physical plan, cut where rows change their partition |
//! | `exchange` | the operators that write and read there |
//! | `processes` | who runs what |

mod exchange;
mod processes;
mod stages;
mod tables;

use std::error::Error;

use datafusion::arrow::util::pretty::pretty_format_batches;

use crate::processes::{Coordinator, serve, work};
use crate::tables::QUERIES;

/// Any error of this program.
pub type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => compare(None),
        ["--service", address] => compare(Some(address)),
        // What this program starts itself.
        ["server", master, name, directory] => serve(master, name, directory),
        ["worker", address, application] => work(address, application.parse()?),
        _ => Err("give nothing, or --service ADDRESS".into()),
    }
}

/// Runs each query in two processes and in DataFusion alone, and compares the results.
fn compare(service: Option<&str>) -> Result<(), Failed> {
    let mut coordinator = Coordinator::start(service)?;
    for query in QUERIES {
        println!("{}: {}\n", query.name, query.about);
        let alone = coordinator.alone(query)?;
        let found = coordinator.run(query)?;
        let (alone, found) = (
            pretty_format_batches(&alone)?,
            pretty_format_batches(&found)?,
        );
        println!("{found}\n");
        if found.to_string() != alone.to_string() {
            return Err(format!("DataFusion alone finds\n{alone}").into());
        }
    }
    println!("All results are those of DataFusion alone.");
    Ok(())
}
