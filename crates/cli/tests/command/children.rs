//! What a command leaves behind when it ends: the name is given back only when it is gone.

use crate::common::{Running, Sandbox, err, is_running, read};

#[test]
fn the_last_writers_of_a_command_may_finish() {
    let sandbox = Sandbox::new();
    let output = sandbox.job(&[], "(sleep 0.3; echo written > late) & exit 4").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(read(&sandbox.path("late")), "written\n");
    assert_eq!(err(&output), "");
}

#[test]
fn what_is_left_in_the_group_is_told_to_stop_and_then_killed() {
    let sandbox = Sandbox::new();
    for (name, prepare) in [("polite", ""), ("stubborn", "trap \"\" TERM;")] {
        // Its streams are its own, so that the test does not wait for it.
        let left = format!("sh -c '{prepare} echo $$ > {name}; exec sleep 60' > /dev/null 2>&1 &");
        let script = format!("{left} while [ ! -s {name} ]; do sleep 0.01; done; exit 7");
        let output = sandbox.job(&["--grace", "500ms"], &script).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "the code is the command's");
        assert!(err(&output).contains("left processes behind"), "{}", err(&output));
        assert!(!is_running(sandbox.pid_of(name)), "{name}");
    }
    assert_eq!(sandbox.shown("job")["holder"], serde_json::Value::Null);
}

#[cfg(target_os = "linux")]
#[test]
fn a_daemon_that_left_the_group_does_not_outlive_the_lock() {
    let sandbox = Sandbox::new();
    let script = "setsid sh -c 'echo $$ > daemon; exec sleep 60' > /dev/null 2>&1 & while [ ! -s daemon ]; do sleep 0.01; done";
    let output = sandbox.job(&["--grace", "500ms"], script).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(!is_running(sandbox.pid_of("daemon")));
}

#[test]
fn children_we_had_before_are_left_alone() {
    let sandbox = Sandbox::new();
    let script = r#"sleep 600 & echo $! > before; exec "$0" run job -- true"#;
    let status = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold")])
        .env("LEASEHOLD_STORE", sandbox.store())
        .current_dir(sandbox.path(""))
        .status()
        .unwrap();
    let before = sandbox.pid_of("before");
    let survived = is_running(before);
    let _ = rustix::process::kill_process(before, rustix::process::Signal::KILL);
    assert!(status.success());
    assert!(survived);
}

/// F127: On the embedded store, waiting commands of a millisecond follow each other without fixed pauses.
#[test]
fn f127_short_jobs_follow_each_other_without_pauses() {
    let sandbox = Sandbox::new();
    let start = std::time::Instant::now();
    let script = "[ ! -e inside ] && : > inside && sleep 0.05 && rm inside";
    let runs: Vec<_> = (0..8).map(|_| Running::start(&mut sandbox.job(&["--quiet"], script))).collect();
    for run in runs {
        assert_eq!(run.finish().0, Some(0), "two were inside at once");
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
