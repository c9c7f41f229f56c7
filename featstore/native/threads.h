/* Several threads that share some work. */
#ifndef FEATSTORE_THREADS_H
#define FEATSTORE_THREADS_H

#include <pthread.h>
#include <signal.h>

#define MAX_THREADS 64

/* Runs `body` in so many threads, this one among them, or in fewer where no more can be started; returns when all have ended. Signals
   are for the threads that there were. */
static void in_threads(void* (*body)(void*), void* work, int num_threads) {
  pthread_t threads[MAX_THREADS];
  sigset_t all, before;
  int num_started = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (num_started < num_threads - 1 && !pthread_create(&threads[num_started], NULL, body, work)) num_started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  body(work);
  while (num_started) pthread_join(threads[--num_started], NULL);
}

#endif
