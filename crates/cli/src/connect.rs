//! From the options that name a store to a client.

use leasehold::{Client, ClientBuilder, Error, Namespace};
use leasehold_redis::{ClusterConfig, RedisConfig};

use crate::args::StoreArgs;
use crate::failure::Failure;

/// Connects to the store. There is no default: a lock in the wrong place excludes nobody.
pub(crate) async fn connect(args: &StoreArgs) -> Result<Client, Failure> {
    connect_with(args, Client::builder()).await
}

/// Connects to look at what is there: a store that does not exist is not created.
pub(crate) async fn connect_to_look(args: &StoreArgs) -> Result<Client, Failure> {
    connect_with(args, Client::builder().existing_only()).await
}

async fn connect_with(args: &StoreArgs, builder: ClientBuilder) -> Result<Client, Failure> {
    let url = url(args)?;
    let mut builder = builder.store_timeout(args.store_timeout);
    if let Some(namespace) = &args.namespace {
        builder = builder.namespace(Namespace::new(namespace)?);
    }
    Ok(builder.connect(url).await?)
}

/// The URL of the store.
pub(crate) fn url(args: &StoreArgs) -> Result<&str, Failure> {
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
    Ok(url)
}

/// Whether this is the URL of a Redis or Valkey server.
pub(crate) fn is_redis(url: &str) -> bool {
    url.starts_with("redis")
}

/// The namespace that names are in: the option, else the URL's, else the default.
pub(crate) fn namespace(args: &StoreArgs) -> Result<Namespace, Error> {
    match (&args.namespace, &args.store) {
        (Some(namespace), _) => Namespace::new(namespace),
        (None, Some(url)) if ClusterConfig::is_cluster_url(url) => {
            Ok(ClusterConfig::from_url(url)?.namespace().clone())
        }
        (None, Some(url)) if is_redis(url) => Ok(RedisConfig::from_url(url)?.namespace().clone()),
        _ => Ok(Namespace::default()),
    }
}
