//! Recipes of shell: cron, a deploy script, checks of a server.

use std::process::Command;

use leasehold_testkit::servers::{RedisServer, kinds_to_test};

use crate::kitchen::{Kitchen, blocks, exited, folder, said};

#[test]
fn every_recipe_is_listed_and_every_listed_one_is_there() {
    let list = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let mut there = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "README.md" {
            assert!(list.contains(&format!("]({name})")), "{name} is not listed");
            there.push(name);
        }
    }
    for link in list.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(there.iter().any(|name| name == link), "{link} is listed and not there");
    }
}

#[test]
fn cron_runs_each_job_once_and_is_silent_about_the_others() {
    let blocks = blocks("cron.md", 3);
    let kitchen = Kitchen::new();
    assert_eq!(blocks[0].language, "crontab");
    let environment = blocks[1].text.replace("redis://reports:secret@locks.example/", kitchen.store());
    assert_ne!(environment, blocks[1].text);
    let environment = kitchen.file("environment", &environment);
    let mut jobs = Vec::new();
    let mut settings = Vec::new();
    for line in blocks[0].text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once('=') {
            Some((name, value)) if !name.contains(' ') => settings.push((name, value)),
            _ => jobs.push(line),
        }
    }
    assert_eq!(jobs.len(), 2);
    let shell = settings.iter().find(|(name, _)| *name == "SHELL").unwrap().1;
    assert!(settings.contains(&("BASH_ENV", "/etc/leasehold.env")));
    for job in jobs {
        let mut rest = job;
        for _field in 0..6 {
            rest = rest.split_once(' ').unwrap().1;
        }
        let fields: Vec<_> = job.split(' ').take(5).collect();
        assert!(fields.iter().all(|field| field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c))));
        assert!(!rest.contains('%'), "cron ends a line there: {rest}");
        for _server in 0..3 {
            let mut run = kitchen.command(shell);
            let run = run.env_remove("LEASEHOLD_STORE").env("BASH_ENV", &environment).args(["-c", rest]);
            let output = run.output().unwrap();
            exited(&output, 0);
            assert_eq!(said(&output), "", "cron would mail it");
        }
    }
    assert_eq!(kitchen.notes(), ["nightly-report --full token:yes", "poll-feed  token:yes"]);
    let output =
        kitchen.command("leasehold").args(["run", "x", "--", "sh", "-euc", &blocks[2].text]).output();
    assert!(said(&output.unwrap()).contains("with fencing token 1"));
}

#[test]
fn the_deploy_script_takes_its_name_tells_what_happened_and_refuses_a_late_one() {
    let blocks = blocks("deploy.md", 3);
    let kitchen = Kitchen::new();
    kitchen.program("deploy.sh", &blocks[0].text);
    let output = kitchen.shell("./deploy.sh staging");
    exited(&output, 0);
    assert!(said(&output).starts_with("deploying staging with fencing token 1"), "{}", said(&output));
    exited(&kitchen.shell("./deploy.sh"), 2);
    let held = "leasehold run deploy:staging -- sh -c \"$1\"";
    let while_held = |script: &str| {
        kitchen.command("sh").args(["-euc", held, "sh", script]).env("LEASEHOLD_NAME", "x").output().unwrap()
    };
    let output = while_held("LEASEHOLD_NAME=other ./deploy.sh staging");
    exited(&output, 2);
    assert!(said(&output).contains("would wait for itself"), "{}", said(&output));

    let tells = |code: &str, script: &str| {
        let output = kitchen.command("sh").args(["-euc", script]).env("STUB_CODE", code).output().unwrap();
        exited(&output, 0);
        said(&output)
    };
    assert_eq!(tells("0", &blocks[1].text), "deployed\n");
    assert!(tells("3", &blocks[1].text).contains("failed with 3"));
    let quick = blocks[1].text.replace("--wait 10s", "--wait 100ms");
    assert_ne!(quick, blocks[1].text);
    let script = kitchen.program("quick.sh", &format!("unset LEASEHOLD_HELD\n{quick}"));
    let output = while_held(&format!("sh {}", script.display()));
    exited(&output, 0);
    assert!(said(&output).contains("another deployment is running"), "{}", said(&output));
    let down =
        quick.replace("leasehold run", "leasehold --store redis://127.0.0.1:1/ --store-timeout 300ms run");
    assert!(tells("0", &down).contains("nothing was started"));
    assert!(tells("79", &blocks[1].text).contains("since the lease was lost"));

    if Command::new("flock").arg("--version").output().is_err() {
        eprintln!("skipped: flock is not installed");
        return;
    }
    kitchen.program("activate.sh", &blocks[2].text);
    exited(&kitchen.shell("./activate.sh 5 one && ./activate.sh 7 two"), 0);
    let late = kitchen.shell("./activate.sh 6 late");
    exited(&late, 1);
    assert!(said(&late).contains("overtaken"));
    exited(&kitchen.shell("./activate.sh 7 again"), 0);
    assert_eq!(std::fs::read_link(kitchen.path("current")).unwrap().to_str(), Some("releases/again"));
}

#[test]
fn the_checks_of_a_server_pass_on_a_good_one_and_show_a_hand_over() {
    let blocks = blocks("managed-redis.md", 2);
    for kind in kinds_to_test("the_checks_of_a_server_pass_on_a_good_one_and_show_a_hand_over") {
        let server = RedisServer::builder(kind).append_only().start().unwrap();
        let kitchen = Kitchen::with_store(&server.url());
        exited(&kitchen.shell(&blocks[0].text), 0);
        let output = kitchen.shell(&blocks[1].text);
        exited(&output, 0);
        let said = said(&output);
        let lines: Vec<_> = said.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(lines, ["released", "handed over"], "{said}");
    }
}
