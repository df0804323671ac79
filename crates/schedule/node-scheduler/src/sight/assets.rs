//! The page, its views one by one, and what names them.

use treadle_host::pages::{Content, Page, dashboard};

/// Views that are shown alone, in a frame of somebody's: their paths, which the page reads, and what
/// JupyterLab's Dask extension calls them.
const ALONE: [(&str, &str); 7] = [
    ("/individual-overview", "Overview"),
    ("/individual-stream", "Task Stream"),
    ("/individual-groups", "Groups"),
    ("/individual-workers", "Workers"),
    ("/individual-transfers", "Transfers"),
    ("/individual-shuffles", "Shuffles"),
    ("/individual-casts", "Casts"),
];
/// What that extension asks for.
const PLOTS: &str = "/individual-plots.json";

/// The pages of the files.
pub(crate) fn pages() -> impl Iterator<Item = Page> {
    let alone = ALONE.into_iter().map(|(path, _)| dashboard::alone(path));
    let plots = Page {
        path: PLOTS,
        is_open: false,
        ask: Box::new(|_, reply| {
            let plots = ALONE.into_iter();
            let plots = plots.map(|(path, name)| (format!("Individual {name}"), path.into()));
            let plots: serde_json::Map<String, serde_json::Value> = plots.collect();
            let text = serde_json::Value::from(plots).to_string();
            reply(Box::new(|| Content::new("application/json", text)));
        }),
    };
    dashboard::files().chain(alone).chain([plots])
}
