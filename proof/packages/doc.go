// Package packages checks what is packaged under deploy: it builds the image, the archives and the packages from the
// files there, looks what is in them, installs them into empty folders and runs the binary from there.
//
// There is no container engine, cluster or registry in it: docs/install.md tells what has not been run.
// "make tools" fetches the programs that it needs.
package packages
