//! What only a real server shows: what is sent, what becomes of a connection, what users are told.

#![cfg(test)]

mod connection;
mod doctor;
mod foreign;
mod pushes;
mod refusals;
mod rights;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod traffic;
mod unscripted;
