//! Recipes that other programs read: systemd's units, and the YAML of CI systems and Kubernetes.

use std::process::Command;

use saphyr::{LoadableYamlNode, Yaml};

use crate::kitchen::{Block, Kitchen, blocks, exited, said};

/// The one document of a block.
fn yaml(block: &Block) -> Yaml<'_> {
    assert_eq!(block.language, "yaml");
    let mut documents = Yaml::load_from_str(&block.text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

/// The value at this path; numbers are places in a list.
fn at<'a, 'b>(yaml: &'a Yaml<'b>, path: &str) -> &'a Yaml<'b> {
    path.split('/').fold(yaml, |value, step| {
        let next = match step.parse::<usize>() {
            Ok(place) => value.as_sequence().and_then(|list| list.get(place)),
            Err(_) => value.as_mapping_get(step),
        };
        next.unwrap_or_else(|| panic!("{path}: no {step} in {value:?}"))
    })
}

fn text<'a>(yaml: &'a Yaml<'_>, path: &str) -> &'a str {
    at(yaml, path).as_str().unwrap_or_else(|| panic!("{path} is no text"))
}

fn texts<'a>(yaml: &'a Yaml<'_>, path: &str) -> Vec<&'a str> {
    at(yaml, path).as_sequence().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

#[test]
fn the_steps_of_ci_jobs_deploy_under_the_name() {
    let blocks = blocks("ci.md", 3);
    let kitchen = Kitchen::new();
    let github = yaml(&blocks[0]);
    assert_eq!(texts(&github, "on/push/branches"), ["main"]);
    assert_eq!(text(&github, "jobs/deploy/steps/1/env/LEASEHOLD_STORE"), "${{ secrets.LEASEHOLD_STORE }}");
    exited(&kitchen.shell(text(&github, "jobs/deploy/steps/1/run")), 0);
    let gitlab = yaml(&blocks[1]);
    for line in texts(&gitlab, "deploy/script") {
        exited(&kitchen.shell(line), 0);
    }
    exited(&kitchen.shell(&blocks[2].text), 0);
    let deployed = "deploy production token:yes";
    assert_eq!(kitchen.notes(), [deployed, deployed, "cleanup --old-artifacts token:yes"]);
}

#[test]
fn the_cron_job_of_kubernetes_runs_and_stops_in_time() {
    let blocks = blocks("kubernetes.md", 2);
    let (job, secret) = (yaml(&blocks[0]), yaml(&blocks[1]));
    assert_eq!((text(&job, "apiVersion"), text(&job, "kind")), ("batch/v1", "CronJob"));
    assert_eq!(text(&job, "spec/concurrencyPolicy"), "Forbid");
    assert_eq!(text(&job, "spec/schedule").split(' ').count(), 5);
    let pod = at(&job, "spec/jobTemplate/spec/template/spec");
    assert_eq!(text(pod, "restartPolicy"), "Never");
    let command = texts(pod, "containers/0/command");
    let grace = command.iter().find_map(|word| word.strip_prefix("--grace=")?.strip_suffix('s')).unwrap();
    let limit = at(pod, "terminationGracePeriodSeconds").as_integer().unwrap();
    assert!(grace.parse::<i64>().unwrap() < limit);
    assert_eq!(text(&secret, "metadata/name"), text(pod, "containers/0/envFrom/0/secretRef/name"));
    let _store = text(&secret, "stringData/LEASEHOLD_STORE");

    let kitchen = Kitchen::new();
    for _cluster in 0..2 {
        let output = kitchen.command(command[0]).args(&command[1..]).output().unwrap();
        exited(&output, 0);
    }
    assert_eq!(kitchen.notes(), ["nightly-report --full token:yes"]);
}

/// The value of a setting of a unit.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_units_of_systemd_are_valid_and_their_commands_run() {
    let kitchen = Kitchen::new();
    let mut files = Vec::new();
    for block in blocks("systemd.md", 3) {
        assert_eq!(block.language, "ini");
        let name = block.text.lines().next().unwrap().rsplit('/').next().unwrap().to_owned();
        for line in block.text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])) {
            let key = line.split_once('=').unwrap().0;
            assert!(key.chars().all(|c| c.is_ascii_alphanumeric()), "{line}");
        }
        let bin = kitchen.path("bin");
        let unit = block.text.replace("/usr/local/bin", bin.to_str().unwrap());
        let unit = unit.replace("/usr/bin/leasehold", bin.join("leasehold").to_str().unwrap());
        if name.ends_with(".service") {
            let command: Vec<_> = setting(&unit, "ExecStart").split(' ').collect();
            for turn in ["first", "second"] {
                let output = kitchen.command(command[0]).args(&command[1..]).output().unwrap();
                let busy = command.contains(&"--no-wait") && turn == "second";
                exited(&output, if busy { 75 } else { 0 });
                if busy {
                    assert_eq!(setting(&unit, "SuccessExitStatus"), "75", "{}", said(&output));
                }
            }
        }
        files.push(kitchen.file(&name, &unit));
    }
    assert_eq!(kitchen.notes().len(), 3);
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    }
    let output =
        kitchen.command("systemd-analyze").args(["verify", "--man=no"]).args(&files).output().unwrap();
    exited(&output, 0);
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(!said(&output).contains(name), "{}", said(&output));
    }
}
