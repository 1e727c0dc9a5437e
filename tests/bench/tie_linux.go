package main

import "syscall"

// tie has the kernel end a process with the thread that starts it.
func tie(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
