//! Servers that forbid scripts: which can be used at all, and how.

use leasehold_core::ErrorKind;
use leasehold_core::store::Store;
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, connect_error, name, owner, run};

const OFF: &str = "?scripting=off&allow_unfenced=1";

#[test]
fn a_server_without_comparing_commands_is_refused() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let error = connect_error(&format!("{}{OFF}", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        for word in ["DELEX", "DELIFEQ", "Valkey 9"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    });
}

#[test]
fn no_script_is_sent_and_no_token_is_minted() {
    for_each_server("no_script_is_sent_and_no_token_is_minted", |server| {
        if server.kind() == ServerKind::Redis7 {
            return;
        }
        run(async {
            server
                .command(&["ACL", "SETUSER", "app", "on", ">pw", "~lock:*", "+@all", "-@scripting"])
                .unwrap();
            let url = format!("redis://app:pw@{}/{OFF}", server.address());
            let process = Process::start(&url).await;
            let can = process.store.capabilities();
            assert!(!can.fencing && !can.queue && !can.push);
            let (job, me) = (name("job"), owner("me"));
            assert!(!process.take(&job, &me).await.is_fenced());
            process.renew(&job, &me).await.unwrap();
            process.release(&job, &me).await.unwrap();
            assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "0");
            let commands = server.command_stats().unwrap();
            assert!(!commands.keys().any(|command| command.starts_with("eval")), "{commands:?}");
        });
    });
}
