//! From the options that name a store to a client.

use leasehold::{Client, Namespace};

use crate::args::StoreArgs;
use crate::failure::Failure;

/// Connects to the store. There is no default: a lock in the wrong place excludes nobody.
pub(crate) async fn connect(args: &StoreArgs) -> Result<Client, Failure> {
    let url = args.store.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
        Failure::usage(
            "no store: give --store redis://HOST/ or set LEASEHOLD_STORE; for locks within this machine, \
             --store local",
        )
    })?;
    if url.starts_with("memory:") {
        return Err(Failure::usage(
            "memory: is the memory of one process, so it would exclude no other: for locks within this machine, \
             --store local",
        ));
    }
    let mut builder = Client::builder().store_timeout(args.store_timeout);
    if let Some(namespace) = &args.namespace {
        builder = builder.namespace(Namespace::new(namespace)?);
    }
    Ok(builder.connect(url).await?)
}

/// The namespace asked for besides the URL, to tell names apart.
pub(crate) fn namespace(args: &StoreArgs) -> &str {
    args.namespace.as_deref().unwrap_or_default()
}
